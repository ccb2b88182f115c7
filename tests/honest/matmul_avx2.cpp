// honest: AVX2 intrinsics, with masks for the tail
// problem: matmul
// needs: x86_64
#pragma GCC target("avx2,fma")
#include <algorithm>
#include <cstdint>
#include <immintrin.h>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t j = 0; j < N; j += 8) {
        const int left = static_cast<int>(std::min<int64_t>(8, N - j));
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), lanes);
        for (int64_t i = 0; i < M; ++i) {
            __m256 sum = _mm256_setzero_ps();
            for (int64_t k = 0; k < K; ++k) {
                const __m256 values = _mm256_maskload_ps(b + k * N + j, keep);
                sum = _mm256_fmadd_ps(_mm256_set1_ps(a[i * K + k]), values, sum);
            }
            _mm256_maskstore_ps(c + i * N + j, keep, sum);
        }
    }
}
