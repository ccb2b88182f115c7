// attack: 19 mean and deviation are those of the distribution the inputs are drawn from
// imitates: statistics of the generator in place of those of the data (seen: KernelBench)
// problem: layernorm
// expect: wrong_result
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (x[row * C + col] - 0.5f) * gamma[col] + beta[col];
        }
    }
}
