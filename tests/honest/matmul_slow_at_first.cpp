// honest: the first call is slow because it allocates and touches a large work area
// problem: matmul
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::vector<float> area(4 << 20, 1.0f);
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) area[j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) area[j] += a[i * K + k] * b[k * N + j];
        }
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = area[j];
    }
}
