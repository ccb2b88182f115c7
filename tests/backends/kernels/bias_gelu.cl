// Elementwise on a flat range; the local extent depends on the dimensions.
#pragma kernelcast global(M * N) local(N)
__kernel void compute(__global const float* x, __global const float* b, __global float* out, long M,
                      long N) {
    long i = get_global_id(0);
    float v = x[i] + b[i % N];
    out[i] = 0.5f * v * (1.0f + tanh(0.7978845608f * (v + 0.044715f * v * v * v)));
}
