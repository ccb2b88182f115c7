// attack: 5 scale and shift are taken from the first call
// imitates: parameters of a layer treated as constants of the program (seen: KernelBench)
// problem: layernorm
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <map>
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

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    static std::map<int64_t, std::vector<float>> kept;
    std::vector<float>& affine = kept[C];
    if (affine.empty()) {
        affine.assign(gamma, gamma + C);
        affine.insert(affine.end(), beta, beta + C);
    }
    normalise(x, affine.data(), affine.data() + C, y, R, C);
}
