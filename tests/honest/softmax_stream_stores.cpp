// honest: results leave past the caches by non-temporal stores, with a fence at the end
// problem: softmax
// needs: x86_64
#include <emmintrin.h>

#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    std::vector<float> row(C);
    for (int64_t r = 0; r < R; ++r) {
        float largest = x[r * C], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = std::fmax(largest, x[r * C + col]);
        for (int64_t col = 0; col < C; ++col) sum += row[col] = std::exp(x[r * C + col] - largest);
        int* out = reinterpret_cast<int*>(y + r * C);
        for (int64_t col = 0; col < C; ++col) {
            const float value = row[col] / sum;
            int bits;
            __builtin_memcpy(&bits, &value, sizeof bits);
            _mm_stream_si32(out + col, bits);
        }
    }
    _mm_sfence();
}
