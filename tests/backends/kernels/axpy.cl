// Four elements a work-item as a vector, and the rest by the last one.
#define ITEMS 64
#pragma kernelcast global((N / 4 + ITEMS) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (4 * i + 4 <= N) vstore4(2.5f * vload4(i, x) + vload4(i, y), i, out);
    else
        for (long j = 4 * i; j < N; ++j) out[j] = 2.5f * x[j] + y[j];
}
