// One group; atomic counts in local memory, B at most 256.
#define ITEMS 256
#pragma kernelcast global(ITEMS) local(ITEMS)
__kernel void compute(__global const int* x, __global int* out, long N, long B) {
    __local int counts[256];
    int me = get_local_id(0);
    counts[me] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (long i = me; i < N; i += ITEMS) atomic_inc(&counts[x[i]]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < B) out[me] = counts[me];
}
