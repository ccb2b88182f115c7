// honest: groups of one work-item, each with a long piece of the array
// problem: scale
#define PIECE 4096
#pragma kernelcast global((N + PIECE - 1) / PIECE) local(1)
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void compute(
    __global const float* x, __global float* out, long N) {
    long first = get_global_id(0) * PIECE;
    long last = min(first + PIECE, N);
    for (long i = first; i < last; ++i) out[i] = x[i] + x[i];
}
