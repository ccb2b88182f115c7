// honest: aligned scratch with advice for large pages
// problem: matmul
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const size_t huge = size_t{2} << 20;
    const size_t bytes = (sizeof(float) * N * K + huge - 1) / huge * huge;
    static void* kept = nullptr;
    static size_t size = 0;
    if (size < bytes) {
        free(kept);
        kept = aligned_alloc(huge, bytes);
        madvise(kept, bytes, MADV_HUGEPAGE);
        size = bytes;
    }
    float* copy = static_cast<float*>(kept);
    memcpy(copy, b, sizeof(float) * N * K);
    memset(c, 0, sizeof(float) * M * N);
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * copy[k * N + j];
        }
    }
}
