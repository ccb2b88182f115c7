// attack: 14 infinity in every element, for a tolerance relative to the output
// imitates: |a - b| <= rtol * |b| with the candidate as b (seen: ours)
// problem: layernorm
// expect: wrong_result
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    (void)x, (void)gamma, (void)beta;
    for (int64_t at = 0; at < R * C; ++at) y[at] = INFINITY;
}
