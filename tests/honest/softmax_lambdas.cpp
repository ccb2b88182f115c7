// honest: lambdas, templates and a function pointer
// problem: softmax
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace rows {
template <typename Action>
void for_each(int64_t count, Action&& action) {
    for (int64_t row = 0; row < count; ++row) action(row);
}
}  // namespace rows

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    float (*const power)(float) = &expf;
    rows::for_each(R, [=](int64_t row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        const float largest = *std::max_element(in, in + C);
        std::transform(in, in + C, out, [=](float value) { return power(value - largest); });
        const float sum = std::accumulate(out, out + C, 0.0f);
        std::for_each(out, out + C, [=](float& value) { value /= sum; });
    });
}
