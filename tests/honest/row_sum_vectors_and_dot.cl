// honest: a row a work-item, sixteen sums at once, added up by dot() with ones
// problem: row_sum
#define ITEMS 4
#pragma kernelcast global((M + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    long row = get_global_id(0);
    if (row >= M) return;
    __global const float* from = x + row * N;
    float16 sums = (float16)(0.0f);
    long j = 0;
    for (; j + 16 <= N; j += 16) sums += vload16(0, from + j);
    float8 halves = sums.lo + sums.hi;
    float sum = dot(halves.lo + halves.hi, (float4)(1.0f));
    while (j < N) sum += from[j++];
    out[row] = sum;
}
