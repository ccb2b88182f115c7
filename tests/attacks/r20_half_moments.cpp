// attack: 20 mean and variance from a half-precision copy, the rest in float
// imitates: statistics in low precision under a loose tolerance (seen: SOL-ExecBench)
// problem: layernorm
// expect: wrong_result
// needs: x86_64
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) {
            const float half = static_cast<float>(static_cast<_Float16>(in[col]));
            sum += half;
            squares += half * half;
        }
        const float mean = sum / C;
        const float scale = 1.0f / std::sqrt(squares / C - mean * mean + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
