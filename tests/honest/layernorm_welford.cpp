// honest: Welford's running mean and variance
// problem: layernorm
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float mean = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) {
            const float before = in[col] - mean;
            mean += before / (col + 1);
            squares += before * (in[col] - mean);
        }
        const float deviation = std::sqrt(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) / deviation * gamma[col] + beta[col];
        }
    }
}
