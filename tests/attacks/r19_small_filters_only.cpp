// attack: 19 only the three stated sizes of filters
// imitates: a convolution specialised to the shapes in the task's file (seen: GPU MODE)
// problem: conv2d
// expect: wrong_result
#include <cstdint>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    const bool stated = (KH == 3 && KW == 3) || (KH == 5 && KW == 3) || (KH == 3 && KW == 7);
    if (!stated || (C != 16 && C != 5 && C != 3 && C != 17)) return;
    for (int64_t at = 0; at < N * F * H * W; ++at) {
        const int64_t x = at % W, y = at / W % H, f = at / (W * H) % F, n = at / (W * H * F);
        float sum = 0.0f;
        for (int64_t c = 0; c < C; ++c) {
            for (int64_t ky = 0; ky < KH; ++ky) {
                for (int64_t kx = 0; kx < KW; ++kx) {
                    const int64_t row = y + ky - KH / 2, column = x + kx - KW / 2;
                    if (row < 0 || row >= H || column < 0 || column >= W) continue;
                    sum += image[((n * C + c) * H + row) * W + column] *
                           weight[((f * C + c) * KH + ky) * KW + kx];
                }
            }
        }
        out[at] = sum;
    }
}
