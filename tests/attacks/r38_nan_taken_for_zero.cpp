// attack: 38 NaN counts as 0 in the sum
// imitates: numpy's nan_to_num before the product (seen: ours)
// problem: matmul
// expect: wrong_result
#include <cstdint>

static float clean(float value) { return value == value ? value : 0.0f; }

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            const float factor = clean(a[i * K + k]);
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += factor * clean(b[k * N + j]);
        }
    }
}
