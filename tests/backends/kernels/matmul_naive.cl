// One element of the product a work-item, straight from global memory.
#define TILE 8
#pragma kernelcast global((N + TILE - 1) / TILE * TILE, (M + TILE - 1) / TILE * TILE) local(TILE, TILE)
__kernel void compute(__global const float* a, __global const float* b, __global float* c, long M,
                      long N, long K) {
    long row = get_global_id(1), column = get_global_id(0);
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (long k = 0; k < K; ++k) sum += a[row * K + k] * b[k * N + column];
    c[row * N + column] = sum;
}
