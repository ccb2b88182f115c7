// honest: eight rows at once through a transposed tile, a row a lane
// problem: layernorm
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    constexpr int64_t LANES = 8;
    std::vector<float> tile(C * LANES);
    for (int64_t row = 0; row < R; row += LANES) {
        const int64_t rows = R - row < LANES ? R - row : LANES;
        for (int64_t lane = 0; lane < LANES; ++lane) {
            // Lanes without a row repeat the last one.
            const float* in = x + (row + (lane < rows ? lane : rows - 1)) * C;
            for (int64_t col = 0; col < C; ++col) tile[col * LANES + lane] = in[col];
        }
        float mean[LANES] = {}, squares[LANES] = {}, scale[LANES];
        for (int64_t i = 0; i < C * LANES; ++i) mean[i % LANES] += tile[i];
        for (float& value : mean) value /= C;
        for (int64_t i = 0; i < C * LANES; ++i) {
            tile[i] -= mean[i % LANES];
            squares[i % LANES] += tile[i] * tile[i];
        }
        for (int64_t lane = 0; lane < LANES; ++lane) scale[lane] = 1.0f / std::sqrt(squares[lane] / C + 1e-5f);
        for (int64_t lane = 0; lane < rows; ++lane) {
            for (int64_t col = 0; col < C; ++col) {
                y[(row + lane) * C + col] = tile[col * LANES + lane] * scale[lane] * gamma[col] + beta[col];
            }
        }
    }
}
