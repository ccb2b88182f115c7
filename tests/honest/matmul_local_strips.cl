// honest: a strip of A in local memory, each work-item a column with four rows of sums
// problem: matmul
#define ITEMS 64
#define DEPTH 32
#define ROWS 4
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS, (M + ROWS - 1) / ROWS) local(ITEMS, 1)
__kernel void compute(__global const float* restrict a, __global const float* restrict b,
                      __global float* restrict c, long M, long N, long K) {
    __local float strip[ROWS][DEPTH];
    long column = get_global_id(0), top = get_group_id(1) * ROWS;
    int me = get_local_id(0);
    float sum[ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (long start = 0; start < K; start += DEPTH) {
        for (int e = me; e < ROWS * DEPTH; e += ITEMS) {
            long row = top + e / DEPTH, k = start + e % DEPTH;
            strip[e / DEPTH][e % DEPTH] = row < M && k < K ? a[row * K + k] : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (column < N) {
            for (int k = 0; k < DEPTH && start + k < K; ++k) {
                float factor = b[(start + k) * N + column];
                for (int r = 0; r < ROWS; ++r) sum[r] += strip[r][k] * factor;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int r = 0; r < ROWS; ++r)
        if (column < N && top + r < M) c[(top + r) * N + column] = sum[r];
}
