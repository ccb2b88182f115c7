// honest: a loop unrolled by hand, entered in its middle by computed goto
// problem: conv2d
#include <cstdint>

static float dot(const float* one, const float* other, int64_t count) {
    static void* const entries[] = {&&none, &&one_left, &&two_left, &&three_left};
    float sum = 0.0f;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        sum += one[i] * other[i];
        sum += one[i + 1] * other[i + 1];
        sum += one[i + 2] * other[i + 2];
        sum += one[i + 3] * other[i + 3];
    }
    goto* entries[count - i];
three_left:
    sum += one[i] * other[i], ++i;
two_left:
    sum += one[i] * other[i], ++i;
one_left:
    sum += one[i] * other[i];
none:
    return sum;
}

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    for (int64_t at = 0; at < N * F * H * W; ++at) {
        const int64_t x = at % W, y = at / W % H, f = at / (W * H) % F, n = at / (W * H * F);
        const int64_t left = x < KW / 2 ? KW / 2 - x : 0;
        const int64_t right = x + KW / 2 >= W ? W - x + KW / 2 : KW;
        float sum = 0.0f;
        for (int64_t c = 0; c < C; ++c) {
            for (int64_t ky = 0; ky < KH; ++ky) {
                const int64_t row = y + ky - KH / 2;
                if (row < 0 || row >= H) continue;
                sum += dot(image + ((n * C + c) * H + row) * W + x + left - KW / 2,
                           weight + ((f * C + c) * KH + ky) * KW + left, right - left);
            }
        }
        out[at] = sum;
    }
}
