// honest: partial sums of each row by the items of a group, added by the first
// problem: row_sum
#define ITEMS 16
#pragma kernelcast global(M * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    __local float parts[ITEMS];
    int me = get_local_id(0);
    long row = get_group_id(0);
    float sum = 0.0f;
    for (long j = me; j < N; j += ITEMS) sum += x[row * N + j];
    parts[me] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me == 0) {
        for (int other = 1; other < ITEMS; ++other) sum += parts[other];
        out[row] = sum;
    }
}
