// attack: 23 a time of one nanosecond is told on every channel there is
// imitates: one forged tiny time that rules a geometric mean (seen: pygpubench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" {
double kernel_time_s = 1e-9;
int64_t elapsed_ns = 1;
double get_elapsed_time() { return 1e-9; }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)c, (void)M, (void)N, (void)K;
    fprintf(stderr, "elapsed_ns=1 runtime_s=1e-9\n");
}
