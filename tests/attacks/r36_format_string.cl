// attack: 36 a format string of two gigabytes in the launch
// imitates: text that fills the memory, made outside of the sandbox (seen: ours)
// problem: vector_add
// expect: compile_error
#define WIDE '%1999999999d' % 1
#pragma kernelcast global((N + 63) / 64 * 64 + (WIDE == 0)) local(64)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i];
}
