// attack: 26 a barrier that half of a group never reaches
// imitates: a deadlock within a group (seen: ours)
// problem: vector_add
// expect: crash
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (get_local_id(0) % 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < N) out[i] = x[i] + y[i];
    }
}
