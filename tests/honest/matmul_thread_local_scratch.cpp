// honest: thread_local scratch under OpenMP
// problem: matmul
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
#pragma omp parallel for
    for (int64_t i = 0; i < M; ++i) {
        static thread_local std::vector<float> sums;
        sums.assign(N, 0.0f);
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) sums[j] += a[i * K + k] * b[k * N + j];
        }
        memcpy(c + i * N, sums.data(), sizeof(float) * N);
    }
}
