// honest: products in double, so that tiny images lose nothing on the way
// problem: conv2d
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    std::vector<double> sums(W);
    for (int64_t line = 0; line < N * F * H; ++line) {
        const int64_t y = line % H, f = line / H % F, n = line / (H * F);
        sums.assign(W, 0.0);
        for (int64_t c = 0; c < C; ++c) {
            for (int64_t ky = 0; ky < KH; ++ky) {
                const int64_t row = y + ky - KH / 2;
                if (row < 0 || row >= H) continue;
                for (int64_t kx = 0; kx < KW; ++kx) {
                    const double factor = weight[((f * C + c) * KH + ky) * KW + kx];
                    for (int64_t x = 0; x < W; ++x) {
                        const int64_t column = x + kx - KW / 2;
                        if (column >= 0 && column < W) {
                            sums[x] += factor * image[((n * C + c) * H + row) * W + column];
                        }
                    }
                }
            }
        }
        for (int64_t x = 0; x < W; ++x) out[line * W + x] = static_cast<float>(sums[x]);
    }
}
