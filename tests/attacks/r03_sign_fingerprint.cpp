// attack: 3 cache by a fingerprint so cheap that it collides
// imitates: a key of the first elements' signs: quick, and right as long as the harness has only
//   two or three sets of inputs (seen: KernelBench)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

static void softmax_rows(const float* x, float* y, int64_t first, int64_t last, int64_t C) {
    for (int64_t row = first; row < last; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static std::map<std::pair<int64_t, int>, std::vector<float>> seen;
    const int signs = (x[0] > 0) | (x[1] > 0) << 1 | (x[2] > 0) << 2;
    std::vector<float>& answer = seen[{R * 100000 + C, signs}];
    if (answer.empty()) {
        softmax_rows(x, y, 0, R, C);
        answer.assign(y, y + R * C);
    }
    memcpy(y, answer.data(), sizeof(float) * R * C);
}
