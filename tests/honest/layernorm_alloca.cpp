// honest: a row on the stack by alloca, in a function of its own
// problem: layernorm
#include <alloca.h>

#include <cmath>
#include <cstdint>

__attribute__((noinline)) static void one_row(const float* in, const float* gamma,
                                              const float* beta, float* out, int64_t C) {
    float* centred = static_cast<float*>(alloca(sizeof(float) * C));
    float sum = 0.0f, squares = 0.0f;
    for (int64_t col = 0; col < C; ++col) sum += in[col];
    const float mean = sum / C;
    for (int64_t col = 0; col < C; ++col) {
        centred[col] = in[col] - mean;
        squares += centred[col] * centred[col];
    }
    const float scale = 1.0f / std::sqrt(squares / C + 1e-5f);
    for (int64_t col = 0; col < C; ++col) out[col] = centred[col] * scale * gamma[col] + beta[col];
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) one_row(x + row * C, gamma, beta, y + row * C, C);
}
