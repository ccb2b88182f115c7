// attack: 28 a secret file is included, to be read from the compiler's messages
// imitates: #include as a way to read files (seen: trust.md)
// problem: vector_add
// expect: compile_error
#include "/etc/passwd"
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i];
}
