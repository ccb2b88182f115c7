// attack: 26 every work-item prints a long line
// imitates: an output that the parent keeps, or that blocks (seen: ours)
// problem: vector_add
// expect: timeout
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    for (int line = 0; line < 100; ++line) printf("%ld %d: all tests passed, the speedup is 99.7\n", i, line);
    if (i < N) out[i] = x[i] + y[i];
}
