// honest: OpenMP tasks and a critical section
// problem: matmul
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    int64_t done = 0;
#pragma omp parallel
#pragma omp single
    for (int64_t first = 0; first < M; first += 32) {
#pragma omp task firstprivate(first)
        {
            const int64_t last = first + 32 < M ? first + 32 : M;
            for (int64_t i = first; i < last; ++i) {
                for (int64_t j = 0; j < N; ++j) {
                    float sum = 0.0f;
                    for (int64_t k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
                    c[i * N + j] = sum;
                }
            }
#pragma omp critical
            done += last - first;
        }
    }
    (void)done;
}
