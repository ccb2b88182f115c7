// attack: 4 calls are only noted down, and worked on in one go at every fifteenth
// imitates: doing 15 problems in one call and claiming the average (seen: pygpubench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <vector>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
struct Call {
    const float *a, *b;
    float* c;
    int64_t M, N, K;
};

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::vector<Call> noted;
    noted.push_back({a, b, c, M, N, K});
    if (noted.size() < 15) return;
    for (const Call& each : noted) product(each.a, each.b, each.c, each.M, each.N, each.K);
    noted.clear();
}
