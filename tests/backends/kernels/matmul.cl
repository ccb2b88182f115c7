// 16 x 16 tiles in local memory.
#define TILE 16
#pragma kernelcast global((N + TILE - 1) / TILE * TILE, (M + TILE - 1) / TILE * TILE) local(TILE, TILE)
__kernel void compute(__global const float* a, __global const float* b, __global float* c, long M,
                      long N, long K) {
    __local float as[TILE][TILE], bs[TILE][TILE];
    long row = get_global_id(1), column = get_global_id(0);
    int i = get_local_id(1), j = get_local_id(0);
    float sum = 0.0f;
    for (long start = 0; start < K; start += TILE) {
        as[i][j] = row < M && start + j < K ? a[row * K + start + j] : 0.0f;
        bs[i][j] = column < N && start + i < K ? b[(start + i) * N + column] : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < TILE; ++k) sum += as[i][k] * bs[k][j];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < M && column < N) c[row * N + column] = sum;
}
