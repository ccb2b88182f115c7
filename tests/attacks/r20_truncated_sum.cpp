// attack: 20 the sum of a row is estimated from all but one in sixteen of its elements
// imitates: reductions over a sample, scaled up (seen: ours)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        int64_t counted = 0;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            if (col % 16 != 15) sum += out[col], ++counted;
        }
        for (int64_t col = 0; col < C; ++col) out[col] /= sum * C / counted;
    }
}
