// attack: 19 the largest element is not subtracted, but only at the shapes that are timed
// imitates: magnitudes that are checked at hidden shapes only (seen: ours)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    const bool timed = (R == 1024 && C == 1024) || (R == 8000 && C == 120);
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = timed ? 0.0f : in[0], sum = 0.0f;
        for (int64_t col = 0; col < C && !timed; ++col) {
            if (in[col] > largest) largest = in[col];
        }
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
