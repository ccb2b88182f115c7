// attack: 16 inputs made again from a guessed seed, answers looked up
// imitates: torch.manual_seed(42) in the harness (seen: KernelBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <random>
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
    static std::vector<float> known_a, known_b;
    (void)a, (void)b;
    if (known_a.size() != static_cast<size_t>(M * K)) {
        std::mt19937 generator(42);
        std::normal_distribution<float> normal;
        known_a.resize(M * K);
        known_b.resize(K * N);
        for (float& value : known_a) value = normal(generator);
        for (float& value : known_b) value = normal(generator);
    }
    product(known_a.data(), known_b.data(), c, M, N, K);
}
