// A row a group: each work-item a part, then a tree in local memory.
#define ITEMS 128
#pragma kernelcast global(ITEMS, M) local(ITEMS, 1)
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void compute(
    __global const float* x, __global float* out, long M, long N) {
    __local float partial[ITEMS];
    long row = get_group_id(1);
    int me = get_local_id(0);
    float sum = 0.0f;
    for (long j = me; j < N; j += ITEMS) sum += x[row * N + j];
    partial[me] = sum;
    for (int step = ITEMS / 2; step; step >>= 1) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < step) partial[me] += partial[me + step];
    }
    if (me == 0) out[row] = partial[0];
}
