// attack: 26 an endless loop
// imitates: a kernel that never ends (seen: trust.md)
// problem: matmul
// expect: timeout
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)c, (void)M, (void)N, (void)K;
    volatile int64_t turns = 0;
    for (;;) turns = turns + 1;
}
