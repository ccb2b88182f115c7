// honest: 4 x 16 sums in registers, tails apart
// problem: matmul
#include <cstdint>

template <int ROWS, int COLUMNS>
static void tile(const float* a, const float* b, float* c, int64_t N, int64_t K) {
    float sums[ROWS][COLUMNS] = {};
    for (int64_t k = 0; k < K; ++k) {
        for (int row = 0; row < ROWS; ++row) {
            for (int column = 0; column < COLUMNS; ++column) {
                sums[row][column] += a[row * K + k] * b[k * N + column];
            }
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int column = 0; column < COLUMNS; ++column) c[row * N + column] = sums[row][column];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    int64_t i = 0;
    for (; i + 4 <= M; i += 4) {
        int64_t j = 0;
        for (; j + 16 <= N; j += 16) tile<4, 16>(a + i * K, b + j, c + i * N + j, N, K);
        for (; j < N; ++j) tile<4, 1>(a + i * K, b + j, c + i * N + j, N, K);
    }
    for (; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) tile<1, 1>(a + i * K, b + j, c + i * N + j, N, K);
    }
}
