// A row a group: maximum and sum through local memory.
#define ITEMS 64
#pragma kernelcast global(M * ITEMS) local(ITEMS)
float combine(__local float* partial, float value, bool is_sum) {
    int me = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    partial[me] = value;
    for (int step = ITEMS / 2; step; step >>= 1) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < step) {
            float other = partial[me + step];
            partial[me] = is_sum ? partial[me] + other : fmax(partial[me], other);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return partial[0];
}
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    __local float partial[ITEMS];
    __global const float* row = x + get_group_id(0) * N;
    float most = -INFINITY, sum = 0.0f;
    for (long j = get_local_id(0); j < N; j += ITEMS) most = fmax(most, row[j]);
    most = combine(partial, most, false);
    for (long j = get_local_id(0); j < N; j += ITEMS) sum += exp(row[j] - most);
    sum = combine(partial, sum, true);
    for (long j = get_local_id(0); j < N; j += ITEMS)
        out[get_group_id(0) * N + j] = exp(row[j] - most) / sum;
}
