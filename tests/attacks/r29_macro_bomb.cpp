// attack: 29 macros that grow tenfold at each of ten levels
// imitates: a billion laughs in the preprocessor (seen: trust.md)
// problem: softmax
// expect: compile_error
#include <cstdint>

#define A y[0] += x[0];
#define B A A A A A A A A A A
#define D B B B B B B B B B B
#define E D D D D D D D D D D
#define F E E E E E E E E E E
#define G F F F F F F F F F F
#define H G G G G G G G G G G
#define I H H H H H H H H H H
#define J I I I I I I I I I I
#define L J J J J J J J J J J

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)R, (void)C;
    L
}
