// honest: a family of templates that takes the compiler some seconds
// problem: matmul
#include <cstdint>
#include <utility>

template <int ROWS, int COLUMNS, int UNROLL>
__attribute__((noinline)) static void block(const float* a, const float* b, float* c, int64_t N,
                                            int64_t K) {
    float sum[ROWS][COLUMNS] = {};
    int64_t k = 0;
    for (; k + UNROLL <= K; k += UNROLL) {
        for (int u = 0; u < UNROLL; ++u) {
            for (int i = 0; i < ROWS; ++i) {
                for (int j = 0; j < COLUMNS; ++j) sum[i][j] += a[i * K + k + u] * b[(k + u) * N + j];
            }
        }
    }
    for (; k < K; ++k) {
        for (int i = 0; i < ROWS; ++i) {
            for (int j = 0; j < COLUMNS; ++j) sum[i][j] += a[i * K + k] * b[k * N + j];
        }
    }
    for (int i = 0; i < ROWS; ++i) {
        for (int j = 0; j < COLUMNS; ++j) c[i * N + j] = sum[i][j];
    }
}

using Block = void (*)(const float*, const float*, float*, int64_t, int64_t);

template <int... INDEX>
static Block chosen(int64_t rows, int64_t columns, std::integer_sequence<int, INDEX...>) {
    static const Block blocks[] = {&block<INDEX / 16 + 1, INDEX % 16 + 1, 4>...};
    return blocks[(rows - 1) * 16 + columns - 1];
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; i += 3) {
        for (int64_t j = 0; j < N; j += 16) {
            const int64_t rows = M - i < 3 ? M - i : 3, columns = N - j < 16 ? N - j : 16;
            chosen(rows, columns, std::make_integer_sequence<int, 48>())(a + i * K, b + j,
                                                                        c + i * N + j, N, K);
        }
    }
}
