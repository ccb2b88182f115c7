// honest: no local memory: a work-item writes a whole row of the result
// problem: transpose
#pragma kernelcast global(N) local(1)
__kernel void compute(__global const float* restrict x, __global float* restrict out, long M, long N) {
    const long column = get_global_id(0);
    __global float* to = out + column * M;
    __attribute__((opencl_unroll_hint(4)))
    for (long row = 0; row < M; ++row) to[row] = x[row * N + column];
}
