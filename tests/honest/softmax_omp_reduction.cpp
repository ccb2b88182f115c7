// honest: max and sum as simd reductions, declared as a reduction of a struct
// problem: softmax
#include <cmath>
#include <cstdint>

struct Largest {
    float value;
};
#pragma omp declare reduction(larger : Largest : omp_out.value = \
    omp_in.value > omp_out.value ? omp_in.value : omp_out.value) initializer(omp_priv = omp_orig)

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        Largest largest{in[0]};
#pragma omp simd reduction(larger : largest)
        for (int64_t col = 0; col < C; ++col) {
            if (in[col] > largest.value) largest.value = in[col];
        }
        float sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) out[col] = std::exp(in[col] - largest.value);
#pragma omp simd reduction(+ : sum)
        for (int64_t col = 0; col < C; ++col) sum += out[col];
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
