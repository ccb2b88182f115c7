// attack: 38 flush-to-zero and denormals-are-zero are set in the kernel, and left set
// imitates: fast-math start-up code linked in, denormals never tested (seen: ours)
// problem: matmul
// expect: wrong_result
// needs: x86_64
#include <xmmintrin.h>

#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    _mm_setcsr(_mm_getcsr() | 0x8040);
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
