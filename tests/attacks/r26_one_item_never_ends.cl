// attack: 26 one work-item of a million never ends
// imitates: a loop that few inputs reach (seen: ours)
// problem: vector_add
// expect: timeout
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    volatile long turns = 0;
    if (i == N - 1)
        while (turns >= 0) turns = (turns + 1) % 1000;
    if (i < N) out[i] = x[i] + y[i];
}
