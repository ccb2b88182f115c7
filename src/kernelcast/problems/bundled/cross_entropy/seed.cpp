#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;

        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) {
            if (in[col] > largest) largest = in[col];
        }

        float sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) {
            out[col] = std::exp(in[col] - largest);
            sum += out[col];
        }

        loss[row] = std::log(sum) - (in[labels[row]] - largest);
        for (int64_t col = 0; col < C; ++col) {
            out[col] = out[col] / sum - (col == labels[row] ? 1.0f : 0.0f);
        }
    }
}
