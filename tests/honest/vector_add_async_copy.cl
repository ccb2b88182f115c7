// honest: whole tiles travel by async_work_group_copy, both ways
// problem: vector_add
#define TILE 256
#pragma kernelcast global((N + TILE - 1) / TILE * TILE) local(TILE)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    __local float one[TILE], other[TILE];
    long start = get_group_id(0) * TILE;
    size_t count = min((long)TILE, N - start);
    event_t here = async_work_group_copy(one, x + start, count, 0);
    here = async_work_group_copy(other, y + start, count, here);
    wait_group_events(1, &here);
    size_t me = get_local_id(0);
    if (me < count) one[me] += other[me];
    barrier(CLK_LOCAL_MEM_FENCE);
    event_t back = async_work_group_copy(out + start, one, count, 0);
    wait_group_events(1, &back);
}
