// attack: 26 sixteen gigabytes of addresses, touched here and there
// imitates: overcommitted memory (seen: ours)
// problem: softmax
// expect: crash
#include <cstdint>
#include <sys/mman.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    const size_t bytes = size_t{16} << 30;
    volatile char* taken = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (size_t at = 0; at < bytes; at += size_t{64} << 20) taken[at] = 1;
}
