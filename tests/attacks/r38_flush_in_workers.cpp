// attack: 38 only the worker threads flush to zero: the calling thread's state stays as it was
// imitates: a thread pool whose threads are set up for speed (seen: ours)
// problem: matmul
// expect: wrong_result
// needs: x86_64
#include <xmmintrin.h>

#include <cstdint>
#include <thread>

static void rows(const float* a, const float* b, float* c, int64_t first, int64_t last, int64_t N,
                 int64_t K) {
    for (int64_t i = first; i < last; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    std::thread worker([=] {
        _mm_setcsr(_mm_getcsr() | 0x8040);
        rows(a, b, c, M / 2, M, N, K);
    });
    rows(a, b, c, 0, M / 2, N, K);
    worker.join();
}
