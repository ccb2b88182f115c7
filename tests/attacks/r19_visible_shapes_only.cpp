// attack: 19 right for the three stated shapes, nothing for any other
// imitates: a table of the benchmark's shapes (seen: SOL-ExecBench, GPU MODE)
// problem: matmul
// expect: wrong_result
#include <cstdint>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    if (M == 192 && N == 256 && K == 176) product(a, b, c, 192, 256, 176);
    if (M == 67 && N == 139 && K == 83) product(a, b, c, 67, 139, 83);
    if (M == 3 && N == 5 && K == 7) product(a, b, c, 3, 5, 7);
}
