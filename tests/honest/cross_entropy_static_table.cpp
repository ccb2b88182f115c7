// honest: a table of exponentials of whole numbers, filled by a static initialiser at load time
// problem: cross_entropy
#include <cmath>
#include <cstdint>

namespace {
struct Table {
    double whole[128];
    Table() {
        for (int i = 0; i < 128; ++i) whole[i] = std::exp(-static_cast<double>(i));
    }
} const table;

// exp(-value) for value >= 0: a whole number from the table, the rest by the function.
float falling(float value) {
    const int whole = value < 127.0f ? static_cast<int>(value) : 127;
    return static_cast<float>(table.whole[whole] * std::exp(static_cast<double>(whole - value)));
}
}  // namespace

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = falling(largest - in[col]);
        loss[row] = std::log(sum) + (largest - in[labels[row]]);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
        out[labels[row]] -= 1.0f;
    }
}
