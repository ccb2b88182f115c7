// honest: everything in double precision
// problem: softmax
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    std::vector<double> powers(C);
    for (int64_t row = 0; row < R; ++row) {
        double largest = x[row * C], sum = 0.0;
        for (int64_t col = 1; col < C; ++col) largest = std::fmax(largest, x[row * C + col]);
        for (int64_t col = 0; col < C; ++col) sum += powers[col] = std::exp(x[row * C + col] - largest);
        for (int64_t col = 0; col < C; ++col) y[row * C + col] = powers[col] / sum;
    }
}
