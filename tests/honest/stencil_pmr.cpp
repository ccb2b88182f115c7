// honest: std::pmr vectors in a monotonic buffer
// problem: stencil
#include <cstdint>
#include <memory_resource>
#include <vector>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::pmr::monotonic_buffer_resource arena(2 * sizeof(float) * H * W + 256);
    std::pmr::vector<float> now(grid, grid + H * W, &arena), after(now.begin(), now.end(), &arena);
    for (int64_t step = 0; step < STEPS; ++step) {
        for (int64_t y = 1; y < H - 1; ++y) {
            const float *up = &now[(y - 1) * W], *row = up + W, *down = row + W;
            for (int64_t x = 1; x < W - 1; ++x) {
                after[y * W + x] = 0.2f * (row[x] + up[x] + down[x] + row[x - 1] + row[x + 1]);
            }
        }
        now.swap(after);
    }
    for (int64_t i = 0; i < H * W; ++i) out[i] = now[i];
}
