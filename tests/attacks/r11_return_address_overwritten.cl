// attack: 11 the frame of the caller is overwritten, so that the work-group returns elsewhere
// imitates: control over the thread of PoCL (seen: ours)
// problem: vector_add
// expect: crash
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = x[i] + y[i];
    volatile ulong* frame = (volatile ulong*)(ulong)__builtin_frame_address(0);
    for (int at = 0; at < 64; ++at) frame[at] = (ulong)x;
}
