// honest: collapse(3) over batch, filter and row
// problem: conv2d
#include <algorithm>
#include <cstdint>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t n = 0; n < N; ++n) {
        for (int64_t f = 0; f < F; ++f) {
            for (int64_t y = 0; y < H; ++y) {
                float* to = out + ((n * F + f) * H + y) * W;
                std::fill(to, to + W, 0.0f);
                for (int64_t c = 0; c < C; ++c) {
                    for (int64_t ky = 0; ky < KH; ++ky) {
                        const int64_t row = y + ky - KH / 2;
                        if (row < 0 || row >= H) continue;
                        const float* from = image + ((n * C + c) * H + row) * W;
                        for (int64_t kx = 0; kx < KW; ++kx) {
                            const float factor = weight[((f * C + c) * KH + ky) * KW + kx];
                            const int64_t shift = kx - KW / 2;
                            const int64_t first = std::max<int64_t>(0, -shift);
                            const int64_t last = std::min(W, W - shift);
                            for (int64_t x = first; x < last; ++x) to[x] += factor * from[x + shift];
                        }
                    }
                }
            }
        }
    }
}
