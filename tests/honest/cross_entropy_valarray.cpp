// honest: std::valarray, a temporary for every step
// problem: cross_entropy
#include <cmath>
#include <cstdint>
#include <valarray>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        std::valarray<float> shifted(logits + row * C, C);
        shifted -= shifted.max();
        std::valarray<float> shares = std::exp(shifted);
        const float sum = shares.sum();
        shares /= sum;
        loss[row] = std::log(sum) - shifted[labels[row]];
        shares[labels[row]] -= 1.0f;
        for (int64_t col = 0; col < C; ++col) gradient[row * C + col] = shares[col];
    }
}
