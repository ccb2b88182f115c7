// honest: SSE intrinsics with unaligned loads and a scalar rest
// problem: stencil
// needs: x86_64
#include <xmmintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    float* scratch = static_cast<float*>(std::malloc(sizeof(float) * H * W));
    std::memcpy(scratch, grid, sizeof(float) * H * W);
    std::memcpy(out, grid, sizeof(float) * H * W);
    const __m128 fifth = _mm_set1_ps(0.2f);
    for (int64_t step = 0; step < STEPS; ++step) {
        const bool last = (STEPS - step) % 2 == 1;
        const float* from = last ? scratch : out;
        float* to = last ? out : scratch;
        for (int64_t y = 1; y < H - 1; ++y) {
            int64_t at = y * W + 1;
            const int64_t end = y * W + W - 1;
            for (; at + 4 <= end; at += 4) {
                __m128 sum = _mm_add_ps(_mm_loadu_ps(from + at), _mm_loadu_ps(from + at - W));
                sum = _mm_add_ps(sum, _mm_loadu_ps(from + at + W));
                sum = _mm_add_ps(sum, _mm_loadu_ps(from + at - 1));
                sum = _mm_add_ps(sum, _mm_loadu_ps(from + at + 1));
                _mm_storeu_ps(to + at, _mm_mul_ps(fifth, sum));
            }
            for (; at < end; ++at) {
                to[at] = 0.2f * (from[at] + from[at - W] + from[at + W] + from[at - 1] + from[at + 1]);
            }
        }
    }
    std::free(scratch);
}
