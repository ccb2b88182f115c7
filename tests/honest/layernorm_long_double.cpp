// honest: moments in long double, on the x87 unit where there is one
// problem: layernorm
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        long double sum = 0.0L, squares = 0.0L;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const long double mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const long double scale = 1.0L / std::sqrt(squares / C + 1e-5L);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = static_cast<float>((in[col] - mean) * scale * gamma[col] + beta[col]);
        }
    }
}
