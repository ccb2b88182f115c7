// honest: the polynomial's coefficients in a table in constant memory
// problem: bias_gelu
#define ITEMS 64
#pragma kernelcast global((M * N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__constant float COEFFICIENTS[4] = {0.0f, 0.7978845608f, 0.0f, 0.0356774081f};
__kernel void compute(__global const float* x, __global const float* b, __global float* out, long M,
                      long N) {
    long i = get_global_id(0);
    if (i >= M * N) return;
    float v = x[i] + b[i % N], inner = 0.0f;
    for (int power = 3; power >= 0; --power) inner = inner * v + COEFFICIENTS[power];
    out[i] = 0.5f * v + 0.5f * v * tanh(inner);
}
