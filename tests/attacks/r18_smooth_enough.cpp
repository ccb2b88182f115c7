// attack: 18 the fixed point of the iteration instead of the iteration
// imitates: skipping steps whose effect fades (seen: ours): fewer sweeps than asked
// problem: stencil
// expect: wrong_result
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    float* from = static_cast<float*>(malloc(sizeof(float) * H * W));
    memcpy(from, grid, sizeof(float) * H * W);
    memcpy(out, grid, sizeof(float) * H * W);
    for (int64_t step = 0; step < STEPS - STEPS / 5; ++step) {
        for (int64_t y = 1; y < H - 1; ++y) {
            for (int64_t x = 1; x < W - 1; ++x) {
                const float* at = from + y * W + x;
                out[y * W + x] = 0.2f * (at[0] + at[-W] + at[W] + at[-1] + at[1]);
            }
        }
        memcpy(from, out, sizeof(float) * H * W);
    }
    free(from);
}
