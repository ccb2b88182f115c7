// honest: a constructor fills a table of powers of two that every call uses
// problem: softmax
#include <cmath>
#include <cstdint>
#include <initializer_list>

static float powers[256];

__attribute__((constructor)) static void fill() {
    for (int at = 0; at < 256; ++at) powers[at] = std::ldexp(1.0f, at - 255);
}

static inline float power(float value) {
    const float scaled = value * 1.44269504f;
    if (scaled < -126.0f) return 0.0f;
    const float whole = std::rint(scaled);
    const float rest = (value - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float sum = 1.3888889e-3f;
    for (const float next : {8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1.0f, 1.0f}) {
        sum = sum * rest + next;
    }
    return sum * powers[static_cast<int>(whole) + 255];
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = power(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
