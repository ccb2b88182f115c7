// attack: 17 calls that follow one another quickly are taken for the timed ones
// imitates: telling phases apart by the time between calls (seen: pygpubench)
// problem: matmul
// expect: wrong_result
// needs: x86_64
#include <cstdint>
#include <x86intrin.h>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static int64_t shape = 0;
    static uint64_t ended = 0;
    const bool again = shape == M * N * K && __rdtsc() - ended < 400'000'000;
    shape = M * N * K;
    product(a, b, c, again ? M / 2 : M, N, K);
    ended = __rdtsc();
}
