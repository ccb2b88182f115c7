// honest: _Float16 where its precision suffices: powers of two, which it holds exactly
// problem: softmax
// needs: x86_64
#include <cmath>
#include <cstdint>

static const _Float16 POWERS[8] = {1, 2, 4, 8, 16, 32, 64, 128};

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) {
            // exp(d) is scaled by 2^3 and back, exactly.
            out[col] = std::exp(in[col] - largest) * static_cast<float>(POWERS[3]);
            sum += out[col];
        }
        for (int64_t col = 0; col < C; ++col) out[col] = out[col] / sum;
    }
}
