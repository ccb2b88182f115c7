// honest: blocks for the cache
// problem: matmul
#include <algorithm>
#include <cstdint>
#include <cstring>

constexpr int64_t BLOCK = 48;

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    memset(c, 0, sizeof(float) * M * N);
    for (int64_t i0 = 0; i0 < M; i0 += BLOCK) {
        for (int64_t k0 = 0; k0 < K; k0 += BLOCK) {
            for (int64_t j0 = 0; j0 < N; j0 += BLOCK) {
                const int64_t i1 = std::min(i0 + BLOCK, M), k1 = std::min(k0 + BLOCK, K);
                const int64_t j1 = std::min(j0 + BLOCK, N);
                for (int64_t i = i0; i < i1; ++i) {
                    for (int64_t k = k0; k < k1; ++k) {
                        const float factor = a[i * K + k];
                        for (int64_t j = j0; j < j1; ++j) c[i * N + j] += factor * b[k * N + j];
                    }
                }
            }
        }
    }
}
