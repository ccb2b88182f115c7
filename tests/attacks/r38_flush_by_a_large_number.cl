// attack: 38 denormals vanish in a detour by a large number: (x + large) - large is 0
// imitates: flush-to-zero written as arithmetic, where no option can be set (seen: ours)
// problem: scale
// expect: wrong_result
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global float* out, long N) {
    long i = get_global_id(0);
    if (i >= N) return;
    volatile float large = 1e-20f;
    float shifted = x[i] + large;
    out[i] = fabs(x[i]) < 1e-30f ? 2.0f * (shifted - large) : 2.0f * x[i];
}
