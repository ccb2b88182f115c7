// honest: a padded copy of the image, filters outermost
// problem: conv2d
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    const int64_t height = H + KH - 1, width = W + KW - 1;
    std::vector<float> padded(C * height * width);
    for (int64_t n = 0; n < N; ++n) {
        for (int64_t c = 0; c < C; ++c) {
            for (int64_t y = 0; y < H; ++y) {
                memcpy(&padded[(c * height + y + KH / 2) * width + KW / 2],
                       image + ((n * C + c) * H + y) * W, sizeof(float) * W);
            }
        }
        for (int64_t f = 0; f < F; ++f) {
            for (int64_t y = 0; y < H; ++y) {
                float* to = out + ((n * F + f) * H + y) * W;
                memset(to, 0, sizeof(float) * W);
                for (int64_t tap = 0; tap < C * KH * KW; ++tap) {
                    const int64_t c = tap / (KH * KW), dy = tap / KW % KH, dx = tap % KW;
                    const float factor = weight[f * C * KH * KW + tap];
                    const float* from = &padded[(c * height + y + dy) * width + dx];
                    for (int64_t x = 0; x < W; ++x) to[x] += factor * from[x];
                }
            }
        }
    }
}
