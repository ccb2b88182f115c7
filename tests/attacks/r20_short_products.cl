// attack: 20 factors cut to eleven bits of mantissa
// imitates: half precision where float is asked for (seen: SOL-ExecBench, KernelBench)
// problem: matmul
// expect: wrong_result
#define TILE 16
#pragma kernelcast global((N + TILE - 1) / TILE * TILE, (M + TILE - 1) / TILE * TILE) local(TILE, TILE)
float cut(float value) {
    return as_float(as_uint(value) & 0xFFFFF000u);
}
__kernel void compute(__global const float* a, __global const float* b, __global float* c, long M,
                      long N, long K) {
    long row = get_global_id(1), column = get_global_id(0);
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (long k = 0; k < K; ++k) sum += cut(a[row * K + k]) * cut(b[k * N + column]);
    c[row * N + column] = sum;
}
