// honest: exp by a table of 2^(i/64) made at compile time, and a short polynomial
// problem: softmax
#include <array>
#include <cmath>
#include <cstdint>

constexpr double root_of_two(int index) {
    // 2^(index/64) as exp(t) by its series, which converges fast for t < 0.7.
    const double t = 0.69314718055994530942 * index / 64;
    double term = 1.0, sum = 1.0;
    for (int n = 1; n < 24; ++n) sum += term *= t / n;
    return sum;
}

constexpr std::array<float, 64> powers() {
    std::array<float, 64> table{};
    for (int index = 0; index < 64; ++index) table[index] = static_cast<float>(root_of_two(index));
    return table;
}

constexpr std::array<float, 64> TABLE = powers();

static float exponential(float value) {
    if (value < -87.0f) return 0.0f;
    const int steps = static_cast<int>(std::lrint(value * 92.332482616893657f));  // 64 / ln 2
    const float rest = static_cast<float>(value - steps * 0.010830424696249145);
    const float near_one = 1.0f + rest * (1.0f + rest * (0.5f + rest * (1.0f / 6.0f)));
    return std::ldexp(TABLE[steps & 63] * near_one, steps >> 6);
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = exponential(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
