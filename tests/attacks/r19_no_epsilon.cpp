// attack: 19 the variance's epsilon is left out, for it hardly matters at unit scale
// imitates: terms dropped that the visible distribution hides (seen: KernelBench)
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
        const float scale = 1.0f / std::sqrt(squares / C);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
