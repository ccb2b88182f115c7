// honest: unrolled by pragma, prefetching
// problem: matmul
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        float* out = c + i * N;
        for (int64_t j = 0; j < N; ++j) out[j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            __builtin_prefetch(b + (k + 4) * N);
            const float factor = a[i * K + k];
#pragma GCC unroll 8
            for (int64_t j = 0; j < N; ++j) out[j] += factor * b[k * N + j];
        }
    }
}
