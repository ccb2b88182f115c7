// honest: aligned tiles of B on the stack
// problem: matmul
#include <algorithm>
#include <cstdint>
#include <cstring>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    alignas(64) float tile[32][64];
    memset(c, 0, sizeof(float) * M * N);
    for (int64_t k0 = 0; k0 < K; k0 += 32) {
        for (int64_t j0 = 0; j0 < N; j0 += 64) {
            const int64_t depth = std::min<int64_t>(32, K - k0), width = std::min<int64_t>(64, N - j0);
            for (int64_t k = 0; k < depth; ++k) {
                memcpy(tile[k], b + (k0 + k) * N + j0, sizeof(float) * width);
            }
            for (int64_t i = 0; i < M; ++i) {
                for (int64_t k = 0; k < depth; ++k) {
                    const float factor = a[i * K + k0 + k];
                    for (int64_t j = 0; j < width; ++j) c[i * N + j0 + j] += factor * tile[k][j];
                }
            }
        }
    }
}
