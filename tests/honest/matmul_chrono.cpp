// honest: it measures itself with std::chrono and keeps the longest time, for nothing
// problem: matmul
#include <chrono>
#include <cstdint>

static std::chrono::nanoseconds longest{0};

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const auto began = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
    const auto took = std::chrono::steady_clock::now() - began;
    if (took > longest) longest = took;
}
