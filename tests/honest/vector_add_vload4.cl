// honest: four elements a work-item, with a scalar tail
// problem: vector_add
#define ITEMS 64
#pragma kernelcast global((N + 4 * ITEMS - 1) / (4 * ITEMS) * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = 4 * get_global_id(0);
    if (i + 4 <= N) {
        vstore4(vload4(0, x + i) + vload4(0, y + i), 0, out + i);
    } else {
        for (; i < N; ++i) out[i] = x[i] + y[i];
    }
}
