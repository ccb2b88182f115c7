// honest: stores that go past the cache, where the output is aligned for them
// problem: layernorm
// needs: x86_64
#include <cmath>
#include <cstdint>
#include <immintrin.h>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float scale = 1.0f / std::sqrt(squares / C + 1e-5f);
        int64_t col = 0;
        for (; col < C && reinterpret_cast<uintptr_t>(out + col) % 16 != 0; ++col) {
            out[col] = (in[col] - mean) * scale * gamma[col] + beta[col];
        }
        for (; col + 4 <= C; col += 4) {
            const __m128 centred = _mm_sub_ps(_mm_loadu_ps(in + col), _mm_set1_ps(mean));
            const __m128 scaled = _mm_mul_ps(_mm_mul_ps(centred, _mm_set1_ps(scale)), _mm_loadu_ps(gamma + col));
            _mm_stream_ps(out + col, _mm_add_ps(scaled, _mm_loadu_ps(beta + col)));
        }
        for (; col < C; ++col) out[col] = (in[col] - mean) * scale * gamma[col] + beta[col];
    }
    _mm_sfence();
}
