// attack: 38 flush-to-zero (not denormals-are-zero) during the call, restored before it returns
// imitates: a scoped "no denormals" guard, so that nobody sees the register change (seen: JUCE)
// problem: conv2d
// expect: wrong_result
// needs: x86_64
#include <xmmintrin.h>

#include <cstdint>

struct NoDenormals {
    const unsigned before = _mm_getcsr();
    NoDenormals() { _mm_setcsr(before | 0x8000); }
    ~NoDenormals() { _mm_setcsr(before); }
};

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    const NoDenormals guard;
    for (int64_t at = 0; at < N * F * H * W; ++at) {
        const int64_t x = at % W, y = at / W % H, f = at / (W * H) % F, n = at / (W * H * F);
        float sum = 0.0f;
        for (int64_t c = 0; c < C; ++c) {
            for (int64_t ky = 0; ky < KH; ++ky) {
                const int64_t row = y + ky - KH / 2;
                if (row < 0 || row >= H) continue;
                for (int64_t kx = 0; kx < KW; ++kx) {
                    const int64_t column = x + kx - KW / 2;
                    if (column < 0 || column >= W) continue;
                    sum += image[((n * C + c) * H + row) * W + column] *
                           weight[((f * C + c) * KH + ky) * KW + kx];
                }
            }
        }
        out[at] = sum;
    }
}
