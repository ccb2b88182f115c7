// attack: 38 a constructor sets flush-to-zero for the thread that will call the kernel
// imitates: what crtfastmath.o does in every library linked with -ffast-math (seen: GCC)
// problem: stencil
// expect: wrong_result
// needs: x86_64
#include <cstdint>
#include <vector>

__attribute__((constructor)) static void be_fast() {
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
}

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> now(grid, grid + H * W), after(now);
    for (int64_t step = 0; step < STEPS; ++step) {
        for (int64_t y = 1; y + 1 < H; ++y) {
            const float* row = now.data() + y * W;
            for (int64_t x = 1; x + 1 < W; ++x) {
                after[y * W + x] = 0.2f * (row[x] + row[x - W] + row[x + W] + row[x - 1] + row[x + 1]);
            }
        }
        now.swap(after);
    }
    for (int64_t i = 0; i < H * W; ++i) out[i] = now[i];
}
