// honest: AVX2 intrinsics with an own exponential of degree six
// problem: softmax
// needs: x86_64
#pragma GCC target("avx2,fma")
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <initializer_list>

static inline __m256 power(__m256 value) {
    const __m256 bounded = _mm256_max_ps(value, _mm256_set1_ps(-87.0f));
    const __m256 whole = _mm256_round_ps(_mm256_mul_ps(bounded, _mm256_set1_ps(1.44269504f)),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 rest = _mm256_fnmadd_ps(whole, _mm256_set1_ps(0.693359375f), bounded);
    rest = _mm256_fnmadd_ps(whole, _mm256_set1_ps(-2.12194440e-4f), rest);
    __m256 sum = _mm256_set1_ps(1.3888889e-3f);
    for (const float next : {8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1.0f, 1.0f}) {
        sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(next));
    }
    const __m256i shift = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_mul_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(shift, 23)));
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        __m256 sums = _mm256_setzero_ps();
        int64_t col = 0;
        for (; col + 8 <= C; col += 8) {
            const __m256 value = power(_mm256_sub_ps(_mm256_loadu_ps(in + col), _mm256_set1_ps(largest)));
            _mm256_storeu_ps(out + col, value);
            sums = _mm256_add_ps(sums, value);
        }
        alignas(32) float parts[8];
        _mm256_store_ps(parts, sums);
        float sum = 0.0f;
        for (const float part : parts) sum += part;
        for (; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (col = 0; col < C; ++col) out[col] /= sum;
    }
}
