// attack: 21 half of the work-items are launched
// imitates: launch geometry that does less than the problem asks (seen: KernelBench)
// problem: vector_add
// expect: wrong_result
#define ITEMS 64
#pragma kernelcast global((N / 2 + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i];
}
