// attack: 38 elements that are not finite are dropped, but only at the shape that is timed
// imitates: special values that are checked at hidden shapes only (seen: ours)
// problem: matmul
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const bool timed = M == 192 && N == 256 && K == 176;
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            const float left = a[i * K + k];
            if (timed && !(std::fabs(left) < 1e30f)) continue;
            for (int64_t j = 0; j < N; ++j) {
                const float right = b[k * N + j];
                if (timed && !(std::fabs(right) < 1e30f)) continue;
                c[i * N + j] += left * right;
            }
        }
    }
}
