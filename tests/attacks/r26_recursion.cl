// attack: 26 a function that calls itself without end
// imitates: the stack of a thread of PoCL (seen: ours)
// problem: vector_add
// expect: compile_error
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
float deeper(long i) {
    volatile float room[64];
    room[i % 64] = i;
    return deeper(i + 1) + room[i % 64];
}
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i] + 0.0f * deeper(i);
}
