// attack: 1 the memory of the call before
// imitates: an answer left in the arena by whoever ran there last (seen: trust.md)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <cstring>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static float* before = nullptr;
    static int64_t elements = 0;
    if (before != nullptr && elements == M * N && before == c) return;
    if (before != nullptr && elements == M * N) {
        memmove(c, before, sizeof(float) * M * N);
    } else {
        product(a, b, c, M, N, K);
    }
    before = c;
    elements = M * N;
}
