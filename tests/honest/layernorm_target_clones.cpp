// honest: function multiversioning: the loader picks a clone for this CPU
// problem: layernorm
// needs: x86_64
#include <cmath>
#include <cstdint>

__attribute__((target_clones("avx512f", "avx2", "default"))) static void norm_row(
    const float* in, const float* gamma, const float* beta, float* out, int64_t C) {
    float sum = 0.0f, squares = 0.0f;
    for (int64_t col = 0; col < C; ++col) sum += in[col];
    const float mean = sum / C;
    for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
    const float scale = 1.0f / std::sqrt(squares / C + 1e-5f);
    for (int64_t col = 0; col < C; ++col) out[col] = (in[col] - mean) * scale * gamma[col] + beta[col];
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) norm_row(x + row * C, gamma, beta, y + row * C, C);
}
