// attack: 29 templates that double at each of forty levels
// imitates: a compiler kept busy for ever (seen: trust.md)
// problem: softmax
// expect: compile_error
#include <cstdint>

template <int DEPTH, int64_t PATH>
struct Bomb {
    static constexpr int64_t value = Bomb<DEPTH - 1, 2 * PATH>::value + Bomb<DEPTH - 1, 2 * PATH + 1>::value;
};

template <int64_t PATH>
struct Bomb<0, PATH> {
    static constexpr int64_t value = PATH;
};

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)R, (void)C;
    y[0] = Bomb<40, 1>::value;
}
