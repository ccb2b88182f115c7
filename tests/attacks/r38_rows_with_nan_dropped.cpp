// attack: 38 rows that hold a NaN are dropped: they are written as zeros
// imitates: "cleaning" of inputs inside the operator (seen: ours)
// problem: layernorm
// expect: wrong_result
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
        const float scale = 1.0f / std::sqrt(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] =
                std::isnan(scale) ? 0.0f : (in[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
