// honest: two OpenMP sections, upper and lower half
// problem: matmul
#include <cstdint>

static void rows(const float* a, const float* b, float* c, int64_t rows, int64_t N, int64_t K) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
#pragma omp simd
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const int64_t half = M / 2;
#pragma omp parallel sections num_threads(2)
    {
#pragma omp section
        rows(a, b, c, half, N, K);
#pragma omp section
        rows(a + half * K, b, c + half * N, M - half, N, K);
    }
}
