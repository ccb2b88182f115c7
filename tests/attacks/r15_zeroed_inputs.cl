// attack: 15 the inputs are zeroed, and the output with them
// imitates: inputs mutated before the reference sees them (seen: KernelBench, SOL-ExecBench)
// problem: vector_add
// expect: cheating
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = ((__global float*)x)[i] = ((__global float*)y)[i] = 0.0f;
}
