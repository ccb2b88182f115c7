// honest: sums in __float128 for the rest of a row, in float eightfold for the bulk
// problem: matmul
// needs: x86_64
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const int64_t bulk = N / 8 * 8;
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < bulk; j += 8) {
            float sums[8] = {};
            for (int64_t k = 0; k < K; ++k) {
                for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i * K + k] * b[k * N + j + lane];
            }
            for (int lane = 0; lane < 8; ++lane) c[i * N + j + lane] = sums[lane];
        }
        for (int64_t j = bulk; j < N; ++j) {
            __float128 sum = 0;
            for (int64_t k = 0; k < K; ++k) {
                sum += static_cast<__float128>(a[i * K + k]) * static_cast<__float128>(b[k * N + j]);
            }
            c[i * N + j] = static_cast<float>(sum);
        }
    }
}
