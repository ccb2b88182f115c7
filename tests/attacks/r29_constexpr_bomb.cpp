// attack: 29 an exponential recursion that the compiler must evaluate
// imitates: unpaid work at compile time (seen: ours)
// problem: softmax
// expect: compile_error
#include <cstdint>

constexpr int64_t paths(int depth, int64_t salt) {
    return depth == 0 ? salt : paths(depth - 1, salt + 1) + paths(depth - 1, salt * 3 + depth);
}
static_assert(paths(60, 1) != 0, "never known");

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
}
