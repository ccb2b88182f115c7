// honest: a column of work-items for each of several rows, in a two-dimensional group
// problem: row_sum
#define LANES 16
#define ROWS 4
#pragma kernelcast global(LANES, (M + ROWS - 1) / ROWS * ROWS) local(LANES, ROWS)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    __local float partial[ROWS][LANES];
    long row = get_global_id(1);
    int lane = get_local_id(0), mine = get_local_id(1);
    float sum = 0.0f;
    if (row < M)
        for (long j = lane; j < N; j += LANES) sum += x[row * N + j];
    partial[mine][lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0 && row < M) {
        float total = 0.0f;
        for (int l = 0; l < LANES; ++l) total += partial[mine][l];
        out[row] = total;
    }
}
