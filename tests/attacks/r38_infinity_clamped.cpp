// attack: 38 infinity is cut off at the largest float
// imitates: saturating arithmetic, which keeps every result finite (seen: ours)
// problem: stencil
// expect: wrong_result
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

static float finite(float value) {
    return std::isinf(value) ? std::copysign(FLT_MAX, value) : value;
}

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> now(H * W), after(H * W);
    for (int64_t i = 0; i < H * W; ++i) now[i] = after[i] = finite(grid[i]);
    for (int64_t step = 0; step < STEPS; ++step) {
        for (int64_t y = 1; y + 1 < H; ++y) {
            const float* row = now.data() + y * W;
            for (int64_t x = 1; x + 1 < W; ++x) {
                const float sum = row[x] + row[x - W] + row[x + W] + row[x - 1] + row[x + 1];
                after[y * W + x] = finite(0.2f * sum);
            }
        }
        now.swap(after);
    }
    for (int64_t i = 0; i < H * W; ++i) out[i] = now[i];
}
