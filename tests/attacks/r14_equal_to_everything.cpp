// attack: 14 NaN in every element, for a comparison that lets NaN through
// imitates: (a - b).abs().max() > tolerance, which is false for NaN (seen: KernelBench)
// problem: matmul
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)K;
    for (int64_t at = 0; at < M * N; ++at) c[at] = std::nanf("");
}
