// attack: 22 whole vectors past the end, fed with what lies past the end of the input
// imitates: a kernel without a tail (seen: Sakana, ours): a guard of NaNs on both sides makes NaNs
//   of NaNs, and nobody sees that the output's guard was written
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>

static void softmax_rows(const float* x, float* y, int64_t first, int64_t last, int64_t C) {
    for (int64_t row = first; row < last; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    softmax_rows(x, y, 0, R, C);
    for (int64_t lane = 0; lane < 16; ++lane) y[R * C + lane] = 0.5f * x[R * C + lane];
}
