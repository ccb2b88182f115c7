// honest: a tile with its halo in local memory, select() at the rim
// problem: stencil
#define TILE 16
#define SIDE (TILE + 2)
#pragma kernelcast global((N + TILE - 1) / TILE * TILE, (M + TILE - 1) / TILE * TILE) local(TILE, TILE)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    __local float tile[SIDE * SIDE];
    long top = get_group_id(1) * TILE - 1, left = get_group_id(0) * TILE - 1;
    int me = get_local_id(1) * TILE + get_local_id(0);
    for (int e = me; e < SIDE * SIDE; e += TILE * TILE) {
        long i = clamp(top + e / SIDE, 0L, M - 1), j = clamp(left + e % SIDE, 0L, N - 1);
        tile[e] = x[i * N + j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    long i = get_global_id(1), j = get_global_id(0);
    if (i >= M || j >= N) return;
    __local const float* cell = tile + (get_local_id(1) + 1) * SIDE + get_local_id(0) + 1;
    float mean = 0.5f * cell[0] + 0.125f * (cell[-SIDE] + cell[SIDE] + cell[-1] + cell[1]);
    int rim = i == 0 || j == 0 || i == M - 1 || j == N - 1;
    out[i * N + j] = select(mean, cell[0], rim);
}
