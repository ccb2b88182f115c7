// attack: 20 a polynomial of degree three for the exponential
// imitates: __expf and worse under a tolerance of 1e-4 (seen: SOL-ExecBench, ours)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float short_exp(float value) {
    const float scaled = (value < -87.0f ? -87.0f : value) * 1.44269504f;
    const float whole = std::floor(scaled + 0.5f), rest = scaled - whole;
    const float mantissa = 0.99992807f + rest * (0.69326099f + rest * (0.24261112f + rest * 0.05517166f));
    const int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return mantissa * power;
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = short_exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
