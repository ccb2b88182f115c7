// honest: a transposed copy of B, made anew in every call
// problem: matmul
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    std::vector<float> columns(N * K);
    for (int64_t k = 0; k < K; ++k) {
        for (int64_t j = 0; j < N; ++j) columns[j * K + k] = b[k * N + j];
    }
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sums[8] = {};
            int64_t k = 0;
            for (; k + 8 <= K; k += 8) {
                for (int lane = 0; lane < 8; ++lane) {
                    sums[lane] += a[i * K + k + lane] * columns[j * K + k + lane];
                }
            }
            for (; k < K; ++k) sums[0] += a[i * K + k] * columns[j * K + k];
            c[i * N + j] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
        }
    }
}
