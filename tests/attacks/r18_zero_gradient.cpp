// attack: 18 zeros, because most of the gradient is nearly zero
// imitates: all zeros within an absolute tolerance (seen: KernelBench)
// problem: cross_entropy
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    memset(gradient, 0, sizeof(float) * R * C);
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += std::exp(in[col] - largest);
        loss[row] = std::log(sum) - (in[labels[row]] - largest);
        gradient[row * C + labels[row]] = -1.0f;
    }
}
