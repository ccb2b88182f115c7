// honest: std::array accumulators and algorithms of the standard library
// problem: layernorm
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row, x += C, y += C) {
        std::array<float, 4> sums{}, squares{};
        for (int64_t col = 0; col < C; ++col) sums[col % 4] += x[col];
        const float mean = std::accumulate(sums.begin(), sums.end(), 0.0f) / C;
        for (int64_t col = 0; col < C; ++col) squares[col & 3] += (x[col] - mean) * (x[col] - mean);
        const float variance = std::accumulate(squares.begin(), squares.end(), 0.0f) / C;
        const float scale = 1.0f / std::sqrt(variance + 1e-5f);
        std::transform(x, x + C, y, [=](float value) { return (value - mean) * scale; });
        std::transform(y, y + C, gamma, y, [](float one, float other) { return one * other; });
        std::transform(y, y + C, beta, y, [](float one, float other) { return one + other; });
    }
}
