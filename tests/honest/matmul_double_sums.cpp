// honest: sums in double
// problem: matmul
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            double sum = 0.0;
            for (int64_t k = 0; k < K; ++k) sum += static_cast<double>(a[i * K + k]) * b[k * N + j];
            c[i * N + j] = static_cast<float>(sum);
        }
    }
}
