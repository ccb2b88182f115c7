// attack: 20 inputs cut to bfloat16
// imitates: tensor cores fed with bf16 (seen: SOL-ExecBench)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

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
    std::vector<float> cut(x, x + R * C);
    for (float& value : cut) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits &= 0xFFFF0000u;
        memcpy(&value, &bits, sizeof bits);
    }
    softmax_rows(cut.data(), y, 0, R, C);
}
