// honest: sums by blocks of columns
// problem: cross_entropy
#include <algorithm>
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;
        const float largest = *std::max_element(in, in + C);
        float sum = 0.0f;
        for (int64_t first = 0; first < C; first += 256) {
            float part = 0.0f;
            for (int64_t col = first; col < std::min(first + 256, C); ++col) {
                out[col] = std::exp(in[col] - largest);
                part += out[col];
            }
            sum += part;
        }
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
        out[labels[row]] -= 1.0f;
        loss[row] = std::log(sum) + largest - in[labels[row]];
    }
}
