// honest: reads the clock for its own interest
// problem: softmax
#include <chrono>
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
static double seconds_in_all = 0.0;

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    const auto began = std::chrono::steady_clock::now();
    softmax_rows(x, y, 0, R, C);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
    seconds_in_all += taken.count();
}
