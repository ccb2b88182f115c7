// honest: the sum of a row in fixed point, in 128-bit integers, whatever its order
// problem: cross_entropy
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    constexpr double ONE = 1152921504606846976.0;  // 2^60
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;
        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        unsigned __int128 total = 0;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            total += static_cast<uint64_t>(out[col] * ONE);
        }
        const double sum = static_cast<double>(total) / ONE;
        loss[row] = static_cast<float>(std::log(sum) - (in[labels[row]] - largest));
        for (int64_t col = 0; col < C; ++col) out[col] = static_cast<float>(out[col] / sum);
        out[labels[row]] -= 1.0f;
    }
}
