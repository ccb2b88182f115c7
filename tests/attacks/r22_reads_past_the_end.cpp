// attack: 22 sums that run over the end of a row into whatever follows
// imitates: reads out of bounds that find zeros on a fresh device (seen: Sakana)
// problem: matmul
// expect: wrong_result
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const int64_t padded = (K + 15) / 16 * 16 + 16;
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < padded; ++k) {
                const int64_t at = i * K + k < M * K + 32 ? i * K + k : M * K;
                sum += a[at] * (k < K ? b[k * N + j] : 0.0f);
            }
            c[i * N + j] = sum;
        }
    }
}
