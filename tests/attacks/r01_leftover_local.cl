// attack: 1 local memory that nobody has written is taken for the answer
// imitates: shared memory in which the block before left its results (seen: Sakana, ours)
// problem: vector_add
// expect: wrong_result
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    __local float leftover[ITEMS];
    long i = get_global_id(0);
    if (i < N) out[i] = leftover[get_local_id(0)];
}
