// honest: the next row is prefetched while this one is normalised
// problem: layernorm
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) {
            if (col % 16 == 0) __builtin_prefetch(in + C + col, 0, 3);
            sum += in[col];
        }
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float scale = 1.0f / std::sqrt(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) out[col] = (in[col] - mean) * scale * gamma[col] + beta[col];
    }
}
