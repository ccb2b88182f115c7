// honest: vectors of sixteen, parts of them by name, and fma
// problem: axpy
#define ITEMS 64
#pragma kernelcast global((N / 16 + ITEMS) / ITEMS * ITEMS) local(ITEMS)
__kernel __attribute__((vec_type_hint(float16))) void compute(
    __global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (16 * i + 16 <= N) {
        float16 from = vload16(i, x), to = vload16(i, y);
        float8 low = fma((float8)(2.5f), from.lo, to.lo);
        float8 high = fma((float8)(2.5f), from.hi, to.hi);
        vstore16((float16)(low, high), i, out);
    } else {
        for (long j = 16 * i; j < N; ++j) out[j] = fma(2.5f, x[j], y[j]);
    }
}
