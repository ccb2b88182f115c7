// honest: pairwise sums by recursion
// problem: layernorm
#include <cmath>
#include <cstdint>

template <class Term>
static float pairwise(int64_t first, int64_t last, const Term& term) {
    if (last - first <= 32) {
        float sum = 0.0f;
        for (int64_t i = first; i < last; ++i) sum += term(i);
        return sum;
    }
    const int64_t middle = (first + last) / 2;
    return pairwise(first, middle, term) + pairwise(middle, last, term);
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        const float mean = pairwise(0, C, [in](int64_t i) { return in[i]; }) / C;
        const auto square = [in, mean](int64_t i) { return (in[i] - mean) * (in[i] - mean); };
        const float scale = 1.0f / std::sqrt(pairwise(0, C, square) / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) * scale * gamma[col] + beta[col];
        }
    }
}
