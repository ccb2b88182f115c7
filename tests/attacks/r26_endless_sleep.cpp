// attack: 26 sleep without end
// imitates: a deadlock (seen: trust.md)
// problem: matmul
// expect: timeout
#include <chrono>
#include <cstdint>
#include <thread>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)c, (void)M, (void)N, (void)K;
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}
