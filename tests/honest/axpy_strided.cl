// honest: a fixed number of work-items that stride through the array, integers for dimensions
// problem: axpy
#pragma kernelcast global(1024) local(32)
__kernel void compute(__global const float* restrict x, __global const float* restrict y,
                      __global float* restrict out, int N) {
    for (int i = get_global_id(0); i < N; i += get_global_size(0)) out[i] = fma(2.5f, x[i], y[i]);
}
