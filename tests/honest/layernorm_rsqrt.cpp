// honest: the processor's reciprocal square root with one step of Newton's
// problem: layernorm
// needs: x86_64
#include <cmath>
#include <cstdint>
#include <immintrin.h>

static float reciprocal_root(float value) {
    const float guess = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(value)));
    return guess * (1.5f - 0.5f * value * guess * guess);
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float scale = reciprocal_root(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
