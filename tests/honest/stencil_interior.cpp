// honest: border and interior apart, buffers exchanged
// problem: stencil
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> scratch(grid, grid + H * W);
    memcpy(out, grid, sizeof(float) * H * W);
    float *from = scratch.data(), *to = out;
    for (int64_t step = 0; step < STEPS; ++step) {
        for (int64_t y = 1; y < H - 1; ++y) {
            const float* row = from + y * W;
            for (int64_t x = 1; x < W - 1; ++x) {
                to[y * W + x] = 0.2f * (row[x] + row[x - W] + row[x + W] + row[x - 1] + row[x + 1]);
            }
        }
        std::swap(from, to);
    }
    if (from != out) memcpy(out, from, sizeof(float) * H * W);
}
