// attack: 20 sums in half precision
// imitates: fp16 accumulators where float is asked for (seen: SOL-ExecBench, KernelBench)
// problem: matmul
// expect: wrong_result
// needs: x86_64
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            _Float16 sum = 0;
            for (int64_t k = 0; k < K; ++k) {
                sum += static_cast<_Float16>(a[i * K + k]) * static_cast<_Float16>(b[k * N + j]);
            }
            c[i * N + j] = sum;
        }
    }
}
