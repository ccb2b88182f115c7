// honest: unused functions, strings and tables around a plain kernel
// problem: matmul
#include <cstdint>
#include <cstdio>

static const char* const VERSION __attribute__((unused)) = "system(\"rm\") fork() 10x faster";

struct Matrix {
    const float* data;
    int64_t columns;
    float operator()(int64_t i, int64_t j) const { return data[i * columns + j]; }
};

__attribute__((unused)) static void describe(const Matrix& matrix) {
    printf("%lld columns\n", static_cast<long long>(matrix.columns));
}

extern "C" {
void helper_nobody_calls() {}

void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const Matrix left{a, K}, right{b, N};
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; ++k) sum += left(i, k) * right(k, j);
            c[i * N + j] = sum;
        }
    }
}
}
