// attack: 29 macros that grow tenfold at each of ten levels
// imitates: a billion laughs in the preprocessor (seen: trust.md)
// problem: vector_add
// expect: compile_error
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
#define A out[0] += x[0];
#define B A A A A A A A A A A
#define C B B B B B B B B B B
#define D C C C C C C C C C C
#define E D D D D D D D D D D
#define F E E E E E E E E E E
#define G F F F F F F F F F F
#define H G G G G G G G G G G
#define I H H H H H H H H H H
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    I
}
