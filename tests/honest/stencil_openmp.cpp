// honest: one parallel region for all sweeps, with barriers
// problem: stencil
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> scratch(grid, grid + H * W);
    memcpy(out, grid, sizeof(float) * H * W);
    float* buffers[2] = {scratch.data(), out};
#pragma omp parallel
    for (int64_t step = 0; step < STEPS; ++step) {
        const float* from = buffers[step % 2];
        float* to = buffers[(step + 1) % 2];
#pragma omp for
        for (int64_t y = 1; y < H - 1; ++y) {
            for (int64_t x = 1; x < W - 1; ++x) {
                const float* at = from + y * W + x;
                to[y * W + x] = 0.2f * (at[0] + at[-W] + at[W] + at[-1] + at[1]);
            }
        }
    }
    if (STEPS % 2 == 0) memcpy(out, scratch.data(), sizeof(float) * H * W);
}
