// attack: 26 an endless loop
// imitates: a kernel that never ends (seen: trust.md)
// problem: vector_add
// expect: timeout
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    volatile long turns = 0;
    while (turns >= 0) turns = (turns + 1) % 1000;
    out[get_global_id(0)] = turns;
}
