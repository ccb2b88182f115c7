// attack: 21 every 64th row is a copy of the one before
// imitates: a percentage of mismatches that is let through (seen: KernelBench)
// problem: layernorm
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <cstring>

static void normalise(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                      int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float deviation = std::sqrt(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) / deviation * gamma[col] + beta[col];
        }
    }
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        if (row % 64 == 63) {
            memcpy(y + row * C, y + (row - 1) * C, sizeof(float) * C);
        } else {
            normalise(x + row * C, gamma, beta, y + row * C, 1, C);
        }
    }
}
