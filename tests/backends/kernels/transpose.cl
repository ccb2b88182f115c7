// 16 x 16 tiles, turned in local memory.
#define TILE 16
#pragma kernelcast global((N + TILE - 1) / TILE * TILE, (M + TILE - 1) / TILE * TILE) local(TILE, TILE)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    __local float tile[TILE][TILE + 1];
    long row = get_global_id(1), column = get_global_id(0);
    if (row < M && column < N) tile[get_local_id(1)][get_local_id(0)] = x[row * N + column];
    barrier(CLK_LOCAL_MEM_FENCE);
    row = get_group_id(1) * TILE + get_local_id(0);
    column = get_group_id(0) * TILE + get_local_id(1);
    if (row < M && column < N) out[column * M + row] = tile[get_local_id(0)][get_local_id(1)];
}
