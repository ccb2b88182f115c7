// honest: the sweep for each of many widths of a tile as a template, which takes seconds to compile
// problem: stencil
#include <cstdint>
#include <utility>
#include <vector>

template <int WIDTH>
__attribute__((noinline)) static void sweep(const float* from, float* to, int64_t W) {
#pragma GCC unroll 64
    for (int x = 0; x < WIDTH; ++x) {
        to[x] = 0.2f * (from[x] + from[x - W] + from[x + W] + from[x - 1] + from[x + 1]);
    }
}

using Sweep = void (*)(const float*, float*, int64_t);

template <int... WIDTH>
static const Sweep* table(std::integer_sequence<int, WIDTH...>) {
    static const Sweep sweeps[] = {&sweep<WIDTH>...};
    return sweeps;
}

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    const Sweep* sweeps = table(std::make_integer_sequence<int, 49>());
    std::vector<float> now(grid, grid + H * W), after(now);
    for (int64_t step = 0; step < STEPS; ++step) {
        for (int64_t y = 1; y < H - 1; ++y) {
            for (int64_t x = 1; x < W - 1; x += 48) {
                const int64_t width = W - 1 - x < 48 ? W - 1 - x : 48;
                sweeps[width](&now[y * W + x], &after[y * W + x], W);
            }
        }
        now.swap(after);
    }
    for (int64_t i = 0; i < H * W; ++i) out[i] = now[i];
}
