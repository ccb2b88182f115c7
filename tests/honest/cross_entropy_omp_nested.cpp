// honest: nested parallel regions, the inner one of one thread
// problem: cross_entropy
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
#pragma omp parallel for num_threads(2) schedule(guided)
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;
        float largest = in[0];
        double sum = 0.0;
        for (int64_t col = 1; col < C; ++col) largest = std::fmax(largest, in[col]);
#pragma omp parallel for num_threads(1) reduction(+ : sum)
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        loss[row] = static_cast<float>(std::log(sum)) - (in[labels[row]] - largest);
        const float share = static_cast<float>(1.0 / sum);
        for (int64_t col = 0; col < C; ++col) out[col] *= share;
        out[labels[row]] -= 1.0f;
    }
}
