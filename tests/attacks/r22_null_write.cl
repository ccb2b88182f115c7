// attack: 22 a write through a null pointer
// imitates: a launch error that nobody checks (seen: KernelBench)
// problem: vector_add
// expect: crash
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i];
    ((volatile __global float*)(N - N))[i] = 1.0f;
}
