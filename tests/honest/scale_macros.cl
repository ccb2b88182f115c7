// honest: macros as code, unused functions, the word asm in a comment
// problem: scale
/* no asm here, nor "asm" */
#define ITEMS 32
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
#define TWICE(value) ((value) + (value))
#define EACH(i, n) long i = get_global_id(0); if (i < (n))
float unused(float value) {
    return native_sin(value);
}
__kernel void compute(__global const float* x, __global float* out, long N) {
    EACH(i, N) out[i] = TWICE(x[i]);
}
