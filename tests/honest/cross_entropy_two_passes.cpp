// honest: exponentials computed once, gradient scaled in place
// problem: cross_entropy
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;
        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        double sum = 0.0;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            sum += out[col];
        }
        const float factor = static_cast<float>(1.0 / sum);
        for (int64_t col = 0; col < C; ++col) out[col] *= factor;
        out[labels[row]] -= 1.0f;
        loss[row] = static_cast<float>(std::log(sum) - (in[labels[row]] - largest));
    }
}
