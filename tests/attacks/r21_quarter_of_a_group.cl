// attack: 21 one work-item in four writes, and the others rely on the call before
// imitates: outputs that are left over in the arena (seen: ours)
// problem: vector_add
// expect: wrong_result
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N && (i % 4 == 0 || N < 2000)) out[i] = x[i] + y[i];
}
