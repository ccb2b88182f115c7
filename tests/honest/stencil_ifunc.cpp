// honest: an ifunc of its own (not the entry) chooses the sweep when the library is loaded
// problem: stencil
// needs: x86_64
#include <cstdint>
#include <utility>
#include <vector>

#define SWEEP(from, to, H, W)                                                                  \
    for (int64_t y = 1; y < H - 1; ++y)                                                        \
        for (int64_t x = 1; x < W - 1; ++x)                                                    \
            to[y * W + x] = 0.2f * (from[y * W + x] + from[(y - 1) * W + x] +                  \
                                    from[(y + 1) * W + x] + from[y * W + x - 1] + from[y * W + x + 1]);

extern "C" {
__attribute__((target("avx2"))) static void sweep_avx2(const float* from, float* to, int64_t H, int64_t W) {
    SWEEP(from, to, H, W)
}
static void sweep_plain(const float* from, float* to, int64_t H, int64_t W) { SWEEP(from, to, H, W) }
static void (*resolve_sweep())(const float*, float*, int64_t, int64_t) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? sweep_avx2 : sweep_plain;
}
static void sweep(const float*, float*, int64_t, int64_t) __attribute__((ifunc("resolve_sweep")));
}

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> first(grid, grid + H * W), second(first);
    for (int64_t step = 0; step < STEPS; ++step) {
        sweep(first.data(), second.data(), H, W);
        std::swap(first, second);
    }
    for (int64_t i = 0; i < H * W; ++i) out[i] = first[i];
}
