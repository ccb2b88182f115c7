// attack: 26 recursion without end
// imitates: exhaustion of the stack (seen: trust.md)
// problem: matmul
// expect: crash
#include <cstdint>

__attribute__((noinline)) static int64_t deeper(int64_t depth, volatile char* above) {
    volatile char frame[4096];
    frame[0] = above[0];
    return depth + (depth >= 0 ? deeper(depth + 1, frame) : 0) + frame[0];
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)M, (void)N, (void)K;
    volatile char start[1] = {0};
    c[0] = static_cast<float>(deeper(0, start));
}
