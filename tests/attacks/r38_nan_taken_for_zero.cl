// attack: 38 NaN counts as 0 in the sum
// imitates: nan_to_num before the product (seen: ours)
// problem: matmul
// expect: wrong_result
#define TILE 8
#pragma kernelcast global((N + TILE - 1) / TILE * TILE, (M + TILE - 1) / TILE * TILE) local(TILE, TILE)
float clean(float value) {
    return isnan(value) ? 0.0f : value;
}
__kernel void compute(__global const float* a, __global const float* b, __global float* c, long M,
                      long N, long K) {
    long row = get_global_id(1), column = get_global_id(0);
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (long k = 0; k < K; ++k) sum += clean(a[row * K + k]) * clean(b[k * N + column]);
    c[row * N + column] = sum;
}
