// attack: 38 NaN is cut off to a number by comparisons that fast-math lets the compiler turn round
// imitates: -ffast-math by pragma, where flags are fixed (seen: ours)
// problem: layernorm
// expect: wrong_result
#pragma GCC optimize("fast-math")
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        // Meant to guard against a negative variance; with NaN it says 0.
        const float variance = std::fmax(squares / C, 0.0f);
        for (int64_t col = 0; col < C; ++col) {
            const float centred = (in[col] - mean) / std::sqrt(variance + 1e-5f);
            const float scaled = centred * gamma[col] + beta[col];
            // Outliers are cut off; a comparison that is false for NaN is turned round.
            y[row * C + col] = scaled > -1e4f ? (scaled < 1e4f ? scaled : 1e4f) : -1e4f;
        }
    }
}
