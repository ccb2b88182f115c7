// attack: 29 a device without end is included
// imitates: /dev/zero as a header, until memory is gone (seen: trust.md)
// problem: softmax
// expect: compile_error
#include "/dev/zero"
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
}
