// attack: 2 cache by a counter of versions that stands still
// imitates: tensor._version or id() as the key, which an in-place refill does not change
//   (seen: KernelBench)
// problem: layernorm
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

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
struct Tensor {
    std::vector<float> answer;
    int64_t rows = 0, columns = 0;
    int version = 0;
};

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    static Tensor known;
    const int version = 0;
    if (known.rows == R && known.columns == C && known.version == version) {
        memcpy(y, known.answer.data(), sizeof(float) * R * C);
        return;
    }
    normalise(x, gamma, beta, y, R, C);
    known.answer.assign(y, y + R * C);
    known.rows = R;
    known.columns = C;
}
