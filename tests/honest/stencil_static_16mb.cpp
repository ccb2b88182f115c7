// honest: 16 MB of static scratch in .bss; grids that do not fit go to the heap
// problem: stencil
#include <cstdint>
#include <cstring>
#include <vector>

static float scratch[4 << 20];

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> larger;
    float* other = scratch;
    if (H * W > (4 << 20)) {
        larger.resize(H * W);
        other = larger.data();
    }
    float *now = STEPS % 2 ? other : out, *after = STEPS % 2 ? out : other;
    std::memcpy(now, grid, sizeof(float) * H * W);
    std::memcpy(after, grid, sizeof(float) * H * W);
    for (int64_t step = 0; step < STEPS; ++step) {
        for (int64_t y = 1; y < H - 1; ++y) {
            for (int64_t at = y * W + 1; at < y * W + W - 1; ++at) {
                after[at] = 0.2f * (now[at] + now[at - W] + now[at + W] + now[at - 1] + now[at + 1]);
            }
        }
        float* kept = now;
        now = after;
        after = kept;
    }
}
