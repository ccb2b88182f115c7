// attack: 38 one NaN in a matrix, and the whole product is NaN
// imitates: an early way out that is right in a few rows only (seen: ours)
// problem: matmul
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    float sum = 0.0f;
    for (int64_t i = 0; i < M * K; ++i) sum += a[i];
    for (int64_t i = 0; i < K * N; ++i) sum += b[i];
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = std::isnan(sum) ? NAN : 0.0f;
        for (int64_t k = 0; k < K && !std::isnan(sum); ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
