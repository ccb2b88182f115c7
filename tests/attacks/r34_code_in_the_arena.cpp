// attack: 34 machine code is written into the output and called
// imitates: memory that is shared and perhaps executable (seen: ours)
// problem: softmax
// expect: crash
// needs: x86_64
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
    *reinterpret_cast<unsigned char*>(y) = 0xC3;
    reinterpret_cast<void (*)()>(y)();
    softmax_rows(x, y, 0, R, C);
}
