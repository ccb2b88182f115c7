// attack: 22 a write through a null pointer, after the work
// imitates: a launch error that nobody checks (seen: KernelBench)
// problem: softmax
// expect: crash
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
    volatile float* nowhere = nullptr;
    *nowhere = 1.0f;
}
