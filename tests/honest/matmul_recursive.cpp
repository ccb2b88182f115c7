// honest: recursion that halves the longest side
// problem: matmul
#include <cstdint>
#include <cstring>

static void add(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K, int64_t lda,
                int64_t ldb) {
    if (M <= 32 && N <= 64 && K <= 32) {
        for (int64_t i = 0; i < M; ++i) {
            for (int64_t k = 0; k < K; ++k) {
                for (int64_t j = 0; j < N; ++j) c[i * ldb + j] += a[i * lda + k] * b[k * ldb + j];
            }
        }
    } else if (M >= N && M >= K) {
        const int64_t half = M / 2;
        add(a, b, c, half, N, K, lda, ldb);
        add(a + half * lda, b, c + half * ldb, M - half, N, K, lda, ldb);
    } else if (N >= K) {
        const int64_t half = N / 2;
        add(a, b, c, M, half, K, lda, ldb);
        add(a, b + half, c + half, M, N - half, K, lda, ldb);
    } else {
        const int64_t half = K / 2;
        add(a, b, c, M, N, half, lda, ldb);
        add(a + half, b + half * ldb, c, M, N, K - half, lda, ldb);
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    memset(c, 0, sizeof(float) * M * N);
    add(a, b, c, M, N, K, K, N);
}
