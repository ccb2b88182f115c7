// Walks down the columns, in double precision and with each exponential taken twice.
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    std::vector<double> largest(R), sum(R, 0.0);
    for (int64_t row = 0; row < R; ++row) largest[row] = x[row * C];
    for (int64_t col = 0; col < C; ++col)
        for (int64_t row = 0; row < R; ++row)
            if (x[row * C + col] > largest[row]) largest[row] = x[row * C + col];
    for (int64_t col = 0; col < C; ++col)
        for (int64_t row = 0; row < R; ++row) sum[row] += std::exp(x[row * C + col] - largest[row]);
    for (int64_t col = 0; col < C; ++col)
        for (int64_t row = 0; row < R; ++row)
            y[row * C + col] = std::exp(x[row * C + col] - largest[row]) / sum[row];
}
