// honest: inline assembly that only computes: rsqrtss and a step of Newton's method
// problem: layernorm
// needs: x86_64
#include <cstdint>

static float inverse_root(float value) {
    float guess;
    asm("rsqrtss %1, %0" : "=x"(guess) : "x"(value));
    for (int step = 0; step < 2; ++step) guess *= 1.5f - 0.5f * value * guess * guess;
    return guess;
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float scale = inverse_root(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
