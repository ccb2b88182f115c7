// attack: 38 every infinity of the result is positive
// imitates: an absolute value where the sign was forgotten (seen: ours)
// problem: conv2d
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    for (int64_t at = 0; at < N * F * H * W; ++at) {
        const int64_t x = at % W, y = at / W % H, f = at / (W * H) % F, n = at / (W * H * F);
        float sum = 0.0f;
        for (int64_t tap = 0; tap < C * KH * KW; ++tap) {
            const int64_t c = tap / (KH * KW);
            const int64_t row = y + tap / KW % KH - KH / 2, column = x + tap % KW - KW / 2;
            if (row < 0 || row >= H || column < 0 || column >= W) continue;
            sum += image[((n * C + c) * H + row) * W + column] * weight[f * C * KH * KW + tap];
        }
        out[at] = std::isinf(sum) ? INFINITY : sum;
    }
}
