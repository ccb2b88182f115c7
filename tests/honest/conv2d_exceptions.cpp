// honest: taps outside of the image are an exception, which is caught; few pixels are at the rim
// problem: conv2d
#include <cstdint>
#include <stdexcept>

struct Image {
    const float* pixels;
    int64_t H, W;
    float at(int64_t row, int64_t column) const {
        if (row < 0 || row >= H || column < 0 || column >= W) throw std::out_of_range("padding");
        return pixels[row * W + column];
    }
};

// At the rim: the first tap outside tells, and the rest is summed with tests.
static float rim(const Image& image, const float* taps, int64_t y, int64_t x, int64_t KH, int64_t KW) {
    float sum = 0.0f;
    try {
        for (int64_t ky = 0; ky < KH; ++ky) {
            for (int64_t kx = 0; kx < KW; ++kx) sum += taps[ky * KW + kx] * image.at(y + ky, x + kx);
        }
    } catch (const std::out_of_range&) {
        sum = 0.0f;
        for (int64_t tap = 0; tap < KH * KW; ++tap) {
            const int64_t row = y + tap / KW, column = x + tap % KW;
            if (row < 0 || row >= image.H || column < 0 || column >= image.W) continue;
            sum += taps[tap] * image.pixels[row * image.W + column];
        }
    }
    return sum;
}

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    for (int64_t at = 0; at < N * F * H * W; ++at) {
        const int64_t x = at % W - KW / 2, y = at / W % H - KH / 2;
        const int64_t f = at / (W * H) % F, n = at / (W * H * F);
        const bool inside = x >= 0 && y >= 0 && x + KW <= W && y + KH <= H;
        const bool corner = y < 0 && x < 0;
        float sum = 0.0f;
        for (int64_t c = 0; c < C; ++c) {
            const Image plane = {image + (n * C + c) * H * W, H, W};
            const float* taps = weight + (f * C + c) * KH * KW;
            if (corner || inside) {
                sum += rim(plane, taps, y, x, KH, KW);
                continue;
            }
            for (int64_t tap = 0; tap < KH * KW; ++tap) {
                const int64_t row = y + tap / KW, column = x + tap % KW;
                if (row < 0 || row >= H || column < 0 || column >= W) continue;
                sum += taps[tap] * plane.pixels[row * W + column];
            }
        }
        out[at] = sum;
    }
}
