// attack: 35 denormal numbers are switched off by a function of the compiler
// imitates: arithmetic in a cheaper mode, for all that runs in the process later (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    __builtin_ia32_ldmxcsr(0x9fc0);
    if (i < N) out[i] = x[i] + y[i];
}
