// attack: 29 a constructor in the compiled program, which runs when it is loaded and never ends
// imitates: code that runs before there is a call (seen: ours); PoCL does not link it
// problem: vector_add
// expect: compile_error
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__attribute__((constructor)) void before(void) {
    volatile int turns = 1;
    while (turns) turns = 1;
}
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i];
}
