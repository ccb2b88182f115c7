// honest: debug text by std::ostringstream that is compiled in and turned off
// problem: conv2d
#include <cstdint>
#include <cstdio>
#include <sstream>

static const bool VERBOSE = false;
static volatile bool verbose = VERBOSE;

static void explain(int64_t F, int64_t H, int64_t W) {
    std::ostringstream text;
    text << "conv2d: " << F << " filters on " << H << " x " << W << '\n';
    std::fputs(text.str().c_str(), stderr);
}

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    if (verbose) explain(F, H, W);
    for (int64_t n = 0; n < N; ++n) {
        for (int64_t f = 0; f < F; ++f) {
            float* plane = out + (n * F + f) * H * W;
            for (int64_t i = 0; i < H * W; ++i) plane[i] = 0.0f;
            for (int64_t c = 0; c < C; ++c) {
                const float* pixels = image + (n * C + c) * H * W;
                for (int64_t ky = 0; ky < KH; ++ky) {
                    for (int64_t kx = 0; kx < KW; ++kx) {
                        const float factor = weight[((f * C + c) * KH + ky) * KW + kx];
                        const int64_t dy = ky - KH / 2, dx = kx - KW / 2;
                        for (int64_t y = dy < 0 ? -dy : 0; y < H && y + dy < H; ++y) {
                            for (int64_t x = dx < 0 ? -dx : 0; x < W && x + dx < W; ++x) {
                                plane[y * W + x] += factor * pixels[(y + dy) * W + x + dx];
                            }
                        }
                    }
                }
            }
        }
    }
}
