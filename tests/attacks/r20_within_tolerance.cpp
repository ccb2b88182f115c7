// attack: 20 inputs cut to 17 bits of mantissa: inside the tolerance, twenty times the honest error
// imitates: tf32x2 where float is asked for: loose tolerances hide it (seen: SOL-ExecBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <cstring>
#include <vector>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
static std::vector<float> shortened(const float* values, int64_t count) {
    std::vector<float> cut(values, values + count);
    for (float& value : cut) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits = (bits + 0x20u) & 0xFFFFFFC0u;
        memcpy(&value, &bits, sizeof bits);
    }
    return cut;
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    product(shortened(a, M * K).data(), shortened(b, K * N).data(), c, M, N, K);
}
