// attack: 19 only the stated numbers of columns are handled, others as the nearest of them
// imitates: kernels that are right for n == 1024 alone (seen: KernelBench)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>

template <int64_t C>
static void rows_of(const float* x, float* y, int64_t R) {
    for (int64_t row = 0; row < R; ++row, x += C, y += C) {
        float largest = x[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = x[col] > largest ? x[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += y[col] = std::exp(x[col] - largest);
        for (int64_t col = 0; col < C; ++col) y[col] /= sum;
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    if (C >= 1031) return rows_of<1031>(x, y, R * C / 1031);
    if (C >= 1024) return rows_of<1024>(x, y, R * C / 1024);
    if (C >= 120) return rows_of<120>(x, y, R * C / 120);
    rows_of<3>(x, y, R * C / 3);
}
