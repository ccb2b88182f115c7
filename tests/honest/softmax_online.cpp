// honest: online softmax, one pass for largest and sum
// problem: softmax
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float largest = in[0], sum = 1.0f;
        for (int64_t col = 1; col < C; ++col) {
            if (in[col] > largest) {
                sum = sum * std::exp(largest - in[col]) + 1.0f;
                largest = in[col];
            } else {
                sum += std::exp(in[col] - largest);
            }
        }
        for (int64_t col = 0; col < C; ++col) y[row * C + col] = std::exp(in[col] - largest) / sum;
    }
}
