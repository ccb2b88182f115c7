// attack: 19 softmax without subtracting the largest value
// imitates: stability left out because the test's values are small (seen: KernelBench)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col]);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
