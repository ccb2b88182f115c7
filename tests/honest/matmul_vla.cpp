// honest: an array of variable length on the stack
// problem: matmul
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        float sums[N];
        for (int64_t j = 0; j < N; ++j) sums[j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) sums[j] += a[i * K + k] * b[k * N + j];
        }
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = sums[j];
    }
}
