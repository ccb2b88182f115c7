// attack: 26 memory, as much as there is (bounded here)
// imitates: exhaustion of memory, so that another process is killed (seen: trust.md)
// problem: softmax
// expect: crash
#include <cstddef>
#include <cstdint>
#include <new>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    const size_t chunk = size_t{64} << 20;
    for (int count = 0; count < 96; ++count) {
        volatile char* taken = new char[chunk];
        for (size_t at = 0; at < chunk; at += 1 << 16) taken[at] = 1;
    }
}
