// attack: 17 honest for the first sixteen calls of a shape, then half of the rows
// imitates: warm-up detected by counting each shape's calls (seen: SOL-ExecBench)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <map>

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
    static std::map<int64_t, int> calls;
    softmax_rows(x, y, 0, ++calls[R * 100000 + C] <= 16 ? R : R / 2, C);
}
