// honest: a row a group of 256, partial sums added up by its first work-item
// problem: layernorm
#define ITEMS 256
#pragma kernelcast global(M * ITEMS) local(ITEMS)
inline float total(__local float* partial, float value) {
    const uint me = get_local_id(0);
    partial[me] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me == 0)
        for (uint other = 1; other < ITEMS; ++other) partial[0] += partial[other];
    barrier(CLK_LOCAL_MEM_FENCE);
    const float sum = partial[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}
__kernel void compute(__global const float* x, __global const float* w, __global const float* b,
                      __global float* out, long M, long N) {
    __local float partial[ITEMS];
    const long start = get_group_id(0) * N;
    float sum = 0.0f, squares = 0.0f;
    for (long j = get_local_id(0); j < N; j += ITEMS) sum += x[start + j];
    const float mean = total(partial, sum) / N;
    for (long j = get_local_id(0); j < N; j += ITEMS) squares += pown(x[start + j] - mean, 2);
    const float scale = 1.0f / sqrt(total(partial, squares) / N + 1e-5f);
    for (long j = get_local_id(0); j < N; j += ITEMS)
        out[start + j] = (x[start + j] - mean) * scale * w[j] + b[j];
}
