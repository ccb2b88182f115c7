// honest: scratch of anonymous pages by mmap, with a hint for huge pages, given back at the end
// problem: stencil
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    const size_t bytes = sizeof(float) * H * W;
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(pages, bytes, MADV_HUGEPAGE);
    float* ends[2] = {static_cast<float*>(pages), out};
    std::memcpy(ends[STEPS % 2 == 0], grid, bytes);
    std::memcpy(ends[STEPS % 2 != 0], grid, bytes);
    for (int64_t step = STEPS; step > 0; --step) {
        float* to = ends[step % 2];
        const float* from = ends[step % 2 == 0];
        for (int64_t y = 1; y < H - 1; ++y) {
            for (int64_t at = y * W + 1; at < y * W + W - 1; ++at) {
                to[at] = 0.2f * (from[at] + from[at - W] + from[at + W] + from[at - 1] + from[at + 1]);
            }
        }
    }
    munmap(pages, bytes);
}
