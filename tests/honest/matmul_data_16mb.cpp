// honest: 16 MB of static scratch in .data, because it is initialised
// problem: matmul
#include <cstdint>

static float packed[4 << 20] = {1.0f};

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const bool fits = N * K <= (4 << 20);
    if (fits) {
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) packed[j * K + k] = b[k * N + j];
        }
    }
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sums[8] = {};
            int64_t k = 0;
            for (; fits && k + 8 <= K; k += 8) {
                for (int lane = 0; lane < 8; ++lane) {
                    sums[lane] += a[i * K + k + lane] * packed[j * K + k + lane];
                }
            }
            for (; k < K; ++k) sums[0] += a[i * K + k] * b[k * N + j];
            float sum = 0.0f;
            for (float part : sums) sum += part;
            c[i * N + j] = sum;
        }
    }
}
