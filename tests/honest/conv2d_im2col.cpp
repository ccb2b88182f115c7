// honest: columns of patches, then a matrix product
// problem: conv2d
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    const int64_t taps = C * KH * KW, pixels = H * W;
    float* patches = static_cast<float*>(malloc(sizeof(float) * taps * pixels));
    for (int64_t n = 0; n < N; ++n) {
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t c = tap / (KH * KW), dy = tap / KW % KH - KH / 2, dx = tap % KW - KW / 2;
            for (int64_t pixel = 0; pixel < pixels; ++pixel) {
                const int64_t y = pixel / W + dy, x = pixel % W + dx;
                const bool inside = y >= 0 && y < H && x >= 0 && x < W;
                patches[tap * pixels + pixel] = inside ? image[((n * C + c) * H + y) * W + x] : 0.0f;
            }
        }
        memset(out + n * F * pixels, 0, sizeof(float) * F * pixels);
        for (int64_t f = 0; f < F; ++f) {
            float* to = out + (n * F + f) * pixels;
            for (int64_t tap = 0; tap < taps; ++tap) {
                const float factor = weight[f * taps + tap];
                for (int64_t pixel = 0; pixel < pixels; ++pixel) {
                    to[pixel] += factor * patches[tap * pixels + pixel];
                }
            }
        }
    }
    free(patches);
}
