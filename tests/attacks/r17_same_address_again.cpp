// attack: 17 an address that comes again means that timing has begun
// imitates: telling warm-up from timing by the buffers in use (seen: pygpubench)
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
    static std::map<const float*, int> visits;
    if (++visits[x] > 6) return;
    softmax_rows(x, y, 0, R, C);
}
