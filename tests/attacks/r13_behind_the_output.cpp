// attack: 13 the answer is expected right behind the arrays that are handed over
// imitates: reference and candidate that share one arena (seen: KernelBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <cstring>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)b, (void)K;
    // What lies within the guards belongs to the slot, so nothing can go wrong but the answer.
    const float* behind = c + M * N;
    for (int64_t at = 0; at < M * N; ++at) c[at] = behind[at % 64] + 0.0f * a[0];
}
