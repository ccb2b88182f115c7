// attack: 21 columns beyond the last multiple of eight are not written
// imitates: vector code without its tail (seen: KernelBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j + 8 <= N; j += 8) {
            float sums[8] = {};
            for (int64_t k = 0; k < K; ++k) {
                for (int64_t lane = 0; lane < 8; ++lane) {
                    sums[lane] += a[i * K + k] * b[k * N + j + lane];
                }
            }
            for (int64_t lane = 0; lane < 8; ++lane) c[i * N + j + lane] = sums[lane];
        }
    }
}
