// EVOLVE-BLOCK-START
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;

        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) {
            if (in[col] > largest) largest = in[col];
        }

        float sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            sum += out[col];
        }

        for (int64_t col = 0; col < C; ++col) {
            out[col] = out[col] / sum;
        }
    }
}
// EVOLVE-BLOCK-END
