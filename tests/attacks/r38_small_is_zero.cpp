// attack: 38 rows of A whose largest element is tiny are written as zeros
// imitates: a sparsity test by an absolute threshold (seen: ours)
// problem: matmul
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        bool anything = false;
        for (int64_t k = 0; k < K; ++k) anything |= !(std::fabs(a[i * K + k]) < 1e-30f);
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; anything && k < K; ++k) {
            if (std::fabs(a[i * K + k]) < 1e-30f) continue;
            for (int64_t j = 0; j < N; ++j) {
                const float factor = std::fabs(b[k * N + j]) < 1e-30f ? 0.0f : b[k * N + j];
                c[i * N + j] += a[i * K + k] * factor;
            }
        }
    }
}
