// honest: restrict pointers and a reciprocal
// problem: softmax
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* __restrict__ x, float* __restrict__ y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* __restrict__ in = x + row * C;
        float* __restrict__ out = y + row * C;
        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) largest = std::fmax(largest, in[col]);
        float sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            sum += out[col];
        }
        const float factor = 1.0f / sum;
        for (int64_t col = 0; col < C; ++col) out[col] *= factor;
    }
}
