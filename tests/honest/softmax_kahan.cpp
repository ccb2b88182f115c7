// honest: compensated sums
// problem: softmax
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f, lost = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            const float term = out[col] - lost, next = sum + term;
            lost = (next - sum) - term;
            sum = next;
        }
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
