// attack: 22 stores without a bound, past the end of the output
// imitates: out-of-bounds luck in padded memory (seen: Sakana)
// problem: vector_add
// expect: wrong_result
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    out[i] = i < N ? x[i] + y[i] : 0.0f;
}
