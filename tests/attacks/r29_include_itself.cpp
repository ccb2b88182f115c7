// attack: 29 the file includes itself, twice
// imitates: a bomb of includes (seen: trust.md)
// problem: softmax
// expect: compile_error
#include <cstdint>
#include __FILE__
#include __FILE__

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
}
