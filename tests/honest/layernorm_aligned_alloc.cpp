// honest: scratch by aligned_alloc, told to the compiler by __builtin_assume_aligned
// problem: layernorm
#include <cmath>
#include <cstdint>
#include <cstdlib>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    const std::size_t bytes = (sizeof(float) * C + 63) / 64 * 64;
    float* row_copy = static_cast<float*>(std::aligned_alloc(64, bytes));
    float* centred = static_cast<float*>(__builtin_assume_aligned(row_copy, 64));
    for (int64_t row = 0; row < R; ++row) {
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += centred[col] = x[row * C + col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) {
            centred[col] -= mean;
            squares += centred[col] * centred[col];
        }
        const float deviation = std::sqrt(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = centred[col] / deviation * gamma[col] + beta[col];
        }
    }
    std::free(row_copy);
}
