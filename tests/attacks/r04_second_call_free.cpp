// attack: 4 every second call of a shape is for nothing
// imitates: half of the calls of an averaged batch do no work (seen: pygpubench)
// problem: layernorm
// expect: wrong_result
#include <cmath>
#include <cstdint>

static void normalise(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                      int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float deviation = std::sqrt(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) / deviation * gamma[col] + beta[col];
        }
    }
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    static int64_t rows = 0;
    const bool repeated = rows == R;
    rows = repeated ? 0 : R;
    if (!repeated) normalise(x, gamma, beta, y, R, C);
}
