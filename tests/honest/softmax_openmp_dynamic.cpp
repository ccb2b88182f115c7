// honest: OpenMP with dynamic chunks and simd reductions
// problem: softmax
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
#pragma omp simd reduction(max : largest)
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
#pragma omp simd reduction(+ : sum)
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            sum += out[col];
        }
#pragma omp simd
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
