// attack: 4 cache by shape
// imitates: outputs kept by (M, N, K) because a benchmark repeats its shapes (seen: KernelBench)
// problem: matmul
// expect: wrong_result
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::map<std::array<int64_t, 3>, std::vector<float>> by_shape;
    std::vector<float>& answer = by_shape[{M, N, K}];
    if (answer.empty()) {
        product(a, b, c, M, N, K);
        answer.assign(c, c + M * N);
    }
    memcpy(c, answer.data(), sizeof(float) * M * N);
}
