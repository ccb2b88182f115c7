// honest: AVX-512 with masks by target attribute where the CPU has it, plain code elsewhere
// problem: matmul
// needs: x86_64
#include <immintrin.h>

#include <cstdint>

__attribute__((target("avx512f"))) static void wide(const float* a, const float* b, float* c,
                                                    int64_t M, int64_t N, int64_t K) {
    for (int64_t j = 0; j < N; j += 16) {
        const __mmask16 mask = N - j >= 16 ? 0xffff : (1u << (N - j)) - 1;
        for (int64_t i = 0; i < M; ++i) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t k = 0; k < K; ++k) {
                const __m512 row = _mm512_maskz_loadu_ps(mask, b + k * N + j);
                sum = _mm512_fmadd_ps(_mm512_set1_ps(a[i * K + k]), row, sum);
            }
            _mm512_mask_storeu_ps(c + i * N + j, mask, sum);
        }
    }
}

static void plain(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    __builtin_cpu_supports("avx512f") ? wide(a, b, c, M, N, K) : plain(a, b, c, M, N, K);
}
