// honest: flush-to-zero is switched off for the call, and the register put back as it was
// problem: stencil
// needs: x86_64
#include <xmmintrin.h>

#include <cstdint>
#include <vector>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before & ~0x8040u);
    std::vector<float> now(grid, grid + H * W), after(now);
    for (int64_t step = 0; step < STEPS; ++step, now.swap(after)) {
        for (int64_t y = 1; y < H - 1; ++y) {
            for (int64_t at = y * W + 1; at < y * W + W - 1; ++at) {
                after[at] = 0.2f * (now[at] + now[at - W] + now[at + W] + now[at - 1] + now[at + 1]);
            }
        }
    }
    for (int64_t i = 0; i < H * W; ++i) out[i] = now[i];
    _mm_setcsr(before);
}
