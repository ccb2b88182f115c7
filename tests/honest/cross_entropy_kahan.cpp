// honest: Kahan's compensated sum, kept from the optimiser by volatile
// problem: cross_entropy
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;
        float largest = in[0], sum = 0.0f, lost = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            const float term = out[col] - lost;
            volatile float next = sum + term;
            lost = (next - sum) - term;
            sum = next;
        }
        loss[row] = std::log(sum) - (in[labels[row]] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
        out[labels[row]] -= 1.0f;
    }
}
