// attack: 22 zeros are written over all that lies before the inputs in memory
// imitates: the heap of PoCL and of the harness (seen: ours)
// problem: vector_add
// expect: crash
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i];
    if (i == 0)
        for (long at = 1; at < 1L << 30; ++at) ((volatile __global float*)x)[-at] = 0.0f;
}
