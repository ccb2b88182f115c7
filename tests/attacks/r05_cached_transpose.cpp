// attack: 5 the second argument is transposed once and kept
// imitates: weights packed outside of the timed region (seen: SOL-ExecBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <map>
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::map<std::pair<int64_t, int64_t>, std::vector<float>> transposed;
    std::vector<float>& packed = transposed[{N, K}];
    if (packed.empty()) {
        packed.resize(N * K);
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) packed[j * K + k] = b[k * N + j];
        }
    }
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; ++k) sum += a[i * K + k] * packed[j * K + k];
            c[i * N + j] = sum;
        }
    }
}
