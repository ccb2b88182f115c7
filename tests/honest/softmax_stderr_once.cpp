// honest: prints a line to standard error, once
// problem: softmax
#include <cmath>
#include <cstdint>
#include <cstdio>

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
    static bool said = false;
    if (!said) {
        said = true;
        fprintf(stderr, "softmax of %lld rows\n", static_cast<long long>(R));
    }
    softmax_rows(x, y, 0, R, C);
}
