// honest: fast-math by attribute
// problem: softmax
#include <cmath>
#include <cstdint>

__attribute__((optimize("Ofast,no-finite-math-only"))) static void one_row(const float* in, float* out,
                                                                          int64_t C) {
    float largest = in[0], sum = 0.0f;
    for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
    for (int64_t col = 0; col < C; ++col) {
        out[col] = expf(in[col] - largest);
        sum += out[col];
    }
    for (int64_t col = 0; col < C; ++col) out[col] /= sum;
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) one_row(x + row * C, y + row * C, C);
}
