// honest: largest and sum in one pass (online), kept in a struct and merged in local memory
// problem: softmax
#define ITEMS 32
#pragma kernelcast global(M * ITEMS) local(ITEMS)
typedef struct {
    float most, sum;
} State;
State merged(State one, State other) {
    State both;
    both.most = fmax(one.most, other.most);
    both.sum = one.sum * exp(one.most - both.most) + other.sum * exp(other.most - both.most);
    return both;
}
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    __local State states[ITEMS];
    long start = get_group_id(0) * N;
    int me = get_local_id(0);
    State mine = {-1e30f, 0.0f};
    for (long j = me; j < N; j += ITEMS) {
        State next = {x[start + j], 1.0f};
        mine = merged(mine, next);
    }
    states[me] = mine;
    for (int step = ITEMS / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < step) states[me] = merged(states[me], states[me + step]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    State all = states[0];
    for (long j = me; j < N; j += ITEMS) out[start + j] = exp(x[start + j] - all.most) / all.sum;
}
