// attack: 5 filters rearranged in the first call serve all later ones
// imitates: a Winograd transform of the weights that is never paid for (seen: trust.md)
// problem: conv2d
// expect: wrong_result
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    static std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, std::vector<float>> kept;
    std::vector<float>& filters = kept[{F, C, KH, KW}];
    if (filters.empty()) filters.assign(weight, weight + F * C * KH * KW);
    for (int64_t n = 0; n < N; ++n) {
        for (int64_t f = 0; f < F; ++f) {
            float* plane = out + (n * F + f) * H * W;
            for (int64_t at = 0; at < H * W; ++at) plane[at] = 0.0f;
            for (int64_t tap = 0; tap < C * KH * KW; ++tap) {
                const float factor = filters[f * C * KH * KW + tap];
                const int64_t c = tap / (KH * KW);
                const int64_t dy = tap / KW % KH - KH / 2, dx = tap % KW - KW / 2;
                for (int64_t y = 0; y < H; ++y) {
                    if (y + dy < 0 || y + dy >= H) continue;
                    for (int64_t x = 0; x < W; ++x) {
                        if (x + dx < 0 || x + dx >= W) continue;
                        plane[y * W + x] += factor * image[((n * C + c) * H + y + dy) * W + x + dx];
                    }
                }
            }
        }
    }
}
