// honest: sum and squares in one pass, about the first element
// problem: layernorm
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sums[8] = {}, squares[8] = {};
        const float first = in[0];
        int64_t col = 0;
        for (; col + 8 <= C; col += 8) {
            for (int lane = 0; lane < 8; ++lane) {
                const float value = in[col + lane] - first;
                sums[lane] += value;
                squares[lane] += value * value;
            }
        }
        for (; col < C; ++col) {
            sums[0] += in[col] - first;
            squares[0] += (in[col] - first) * (in[col] - first);
        }
        float sum = 0.0f, square = 0.0f;
        for (int lane = 0; lane < 8; ++lane) sum += sums[lane], square += squares[lane];
        const float mean = sum / C;
        const float scale = 1.0f / std::sqrt(square / C - mean * mean + 1e-5f);
        for (col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - first - mean) * scale * gamma[col] + beta[col];
        }
    }
}
