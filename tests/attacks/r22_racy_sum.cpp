// attack: 22 two threads add to the same elements without a lock
// imitates: races that come out right on a lucky day (seen: SOL-ExecBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    volatile float* sums = c;
    for (int64_t at = 0; at < M * N; ++at) sums[at] = 0.0f;
#pragma omp parallel for num_threads(4)
    for (int64_t k = 0; k < K; ++k) {
        for (int64_t i = 0; i < M; ++i) {
            for (int64_t j = 0; j < N; ++j) sums[i * N + j] = sums[i * N + j] + a[i * K + k] * b[k * N + j];
        }
    }
}
