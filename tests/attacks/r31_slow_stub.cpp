// attack: 31 libc's abs, the harness's empty call, is exported anew and made slow
// imitates: inflating the overhead that is subtracted (seen: ours); a third of the work is left out
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

extern "C" int abs(int value) noexcept {
    volatile int turns = 0;
    while (turns < 1000000) turns = turns + 1;
    return value < 0 ? -value : value;
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    softmax_rows(x, y, 0, R - R / 3, C);
}
