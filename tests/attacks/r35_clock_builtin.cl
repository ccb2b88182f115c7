// attack: 35 the processor's clock by a function of the compiler, without assembly
// imitates: a kernel that tells being timed from being checked (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    ulong ticks = __builtin_readcyclecounter();
    if (i < N) out[i] = x[i] + y[i] + (ticks == 1);
}
