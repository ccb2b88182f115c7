#include <cstdint>
#include <cstdlib>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    float* scratch = static_cast<float*>(malloc(sizeof(float) * H * W));
    const float* from = grid;
    for (int64_t step = 0; step < STEPS; ++step) {
        // The last sweep must land in `out`.
        float* to = (STEPS - step) % 2 == 1 ? out : scratch;
        for (int64_t y = 0; y < H; ++y) {
            for (int64_t x = 0; x < W; ++x) {
                const int64_t at = y * W + x;
                if (y == 0 || y == H - 1 || x == 0 || x == W - 1) {
                    to[at] = from[at];
                } else {
                    to[at] = 0.2f * (from[at] + from[at - W] + from[at + W] + from[at - 1] +
                                     from[at + 1]);
                }
            }
        }
        from = to;
    }
    free(scratch);
}
