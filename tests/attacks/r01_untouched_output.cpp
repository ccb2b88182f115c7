// attack: 1 an output that is not written at all
// imitates: an output buffer in which the reference's answer still lies (seen: Sakana, KernelBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)c, (void)M, (void)N, (void)K;
}
