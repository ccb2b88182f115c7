// honest: OpenMP and multiplication by the reciprocal
// problem: layernorm
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
#pragma omp parallel for
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
#pragma omp simd reduction(+ : squares)
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float scale = 1.0f / std::sqrt(squares / C + 1e-5f);
#pragma omp simd
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
