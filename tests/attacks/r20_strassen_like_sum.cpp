// attack: 20 products summed after rounding every partial sum to 18 bits
// imitates: an accumulator narrower than stated (seen: SOL-ExecBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; ++k) {
                sum += a[i * K + k] * b[k * N + j];
                // Adding and taking away a large number drops the lowest bits.
                volatile float shifted = sum + 96.0f * 1024.0f / 64.0f;
                sum = shifted - 96.0f * 1024.0f / 64.0f;
            }
            c[i * N + j] = sum;
        }
    }
}
