#include <cstdint>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    for (int64_t n = 0; n < N; ++n) {
        for (int64_t f = 0; f < F; ++f) {
            for (int64_t y = 0; y < H; ++y) {
                for (int64_t x = 0; x < W; ++x) {
                    float sum = 0.0f;
                    for (int64_t c = 0; c < C; ++c) {
                        for (int64_t ky = 0; ky < KH; ++ky) {
                            for (int64_t kx = 0; kx < KW; ++kx) {
                                const int64_t row = y + ky - KH / 2;
                                const int64_t column = x + kx - KW / 2;
                                if (row >= 0 && row < H && column >= 0 && column < W) {
                                    sum += image[((n * C + c) * H + row) * W + column] *
                                           weight[((f * C + c) * KH + ky) * KW + kx];
                                }
                            }
                        }
                    }
                    out[((n * F + f) * H + y) * W + x] = sum;
                }
            }
        }
    }
}
