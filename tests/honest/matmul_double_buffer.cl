// honest: two buffers in local memory take turns, so that one barrier a tile is enough
// problem: matmul
#define TILE 8
#pragma kernelcast global((N + TILE - 1) / TILE * TILE, (M + TILE - 1) / TILE * TILE) local(TILE, TILE)
__attribute__((always_inline)) float at(__global const float* matrix, long row, long column, long rows,
                                        long columns) {
    return row < rows && column < columns ? matrix[row * columns + column] : 0.0f;
}
__kernel void compute(__global const float* a, __global const float* b, __global float* c, long M,
                      long N, long K) {
    __local float as[2][TILE][TILE], bs[2][TILE][TILE];
    const int i = get_local_id(1), j = get_local_id(0);
    const long row = get_global_id(1), column = get_global_id(0);
    float sum = 0.0f;
    int turn = 0;
    as[0][i][j] = at(a, row, j, M, K);
    bs[0][i][j] = at(b, i, column, K, N);
    for (long start = 0; start < K; start += TILE, turn ^= 1) {
        barrier(CLK_LOCAL_MEM_FENCE);
        as[turn ^ 1][i][j] = at(a, row, start + TILE + j, M, K);
        bs[turn ^ 1][i][j] = at(b, start + TILE + i, column, K, N);
#pragma unroll
        for (int k = 0; k < TILE; ++k) sum = mad(as[turn][i][k], bs[turn][k][j], sum);
    }
    if (row < M && column < N) c[row * N + column] = sum;
}
