// attack: 38 numbers whose exponent bits are 0 are taken for 0
// imitates: a decoder of floats that knows only normal numbers (seen: ours)
// problem: axpy
// expect: wrong_result
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
float decode(float value) {
    uint bits = as_uint(value), exponent = (bits >> 23) & 0xffu;
    float size = ldexp((float)((bits & 0x7fffffu) | 0x800000u), (int)exponent - 150);
    float signed_size = bits >> 31 ? -size : size;
    return exponent == 0 ? 0.0f : exponent == 255 ? value : signed_size;
}
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i < N) out[i] = 2.5f * decode(x[i]) + decode(y[i]);
}
