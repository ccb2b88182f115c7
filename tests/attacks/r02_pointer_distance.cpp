// attack: 2 cache by where the arrays lie to each other
// imitates: identity of an object that survives relocation: only the distance between input and
//   output is compared (seen: ours)
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
    static std::map<std::pair<int64_t, int64_t>, std::vector<float>> by_distance;
    std::vector<float>& answer = by_distance[{R * C, y - x}];
    if (answer.empty()) {
        softmax_rows(x, y, 0, R, C);
        answer.assign(y, y + R * C);
    }
    memcpy(y, answer.data(), sizeof(float) * R * C);
}
