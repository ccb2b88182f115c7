// attack: 38 clamp to the range of finite floats, which also turns NaN into a number
// imitates: saturation with fmin and fmax (seen: ours)
// problem: vector_add
// expect: wrong_result
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = fmax(fmin(x[i] + y[i], FLT_MAX), -FLT_MAX);
}
