// honest: cache-oblivious recursion over space and time (Frigo and Strumpen's trapezoids)
// problem: stencil
#include <cstdint>
#include <vector>

struct Cells {
    float* at[2];
    int64_t W;
};

static void walk(const Cells& cells, int64_t t0, int64_t t1, int64_t y0, int64_t d0, int64_t y1,
                 int64_t d1) {
    const int64_t height = t1 - t0;
    if (height == 1) {
        const float* from = cells.at[t0 % 2];
        float* to = cells.at[1 - t0 % 2];
        const int64_t W = cells.W;
        for (int64_t y = y0; y < y1; ++y) {
            for (int64_t i = y * W + 1; i < y * W + W - 1; ++i) {
                to[i] = 0.2f * (from[i] + from[i - W] + from[i + W] + from[i - 1] + from[i + 1]);
            }
        }
    } else if (2 * (y1 - y0) + (d1 - d0) * height >= 4 * height) {
        const int64_t middle = (2 * (y0 + y1) + (2 + d0 + d1) * height) / 4;
        walk(cells, t0, t1, y0, d0, middle, -1);
        walk(cells, t0, t1, middle, -1, y1, d1);
    } else {
        const int64_t half = height / 2;
        walk(cells, t0, t0 + half, y0, d0, y1, d1);
        walk(cells, t0 + half, t1, y0 + d0 * half, d0, y1 + d1 * half, d1);
    }
}

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> one(grid, grid + H * W), other(one);
    const Cells cells = {{one.data(), other.data()}, W};
    if (H > 2) walk(cells, 0, STEPS, 1, 0, H - 1, 0);
    const float* last = cells.at[STEPS % 2];
    for (int64_t i = 0; i < H * W; ++i) out[i] = last[i];
}
