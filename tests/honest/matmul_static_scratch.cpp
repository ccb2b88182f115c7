// honest: scratch memory kept between calls, its content made anew each time
// problem: matmul
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::vector<float> scratch;
    if (scratch.size() < static_cast<std::size_t>(N * K)) scratch.resize(N * K);
    for (int64_t k = 0; k < K; ++k) {
        for (int64_t j = 0; j < N; ++j) scratch[j * K + k] = b[k * N + j];
    }
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; ++k) sum += a[i * K + k] * scratch[j * K + k];
            c[i * N + j] = sum;
        }
    }
}
