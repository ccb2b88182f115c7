// As many work-items as it pleases, striding over the array; dimensions may be 32 bits wide.
#pragma kernelcast global(2048) local(32)
__kernel void compute(__global const float* restrict x, __global float* restrict out, int N) {
    for (int i = get_global_id(0); i < N; i += get_global_size(0)) out[i] = 2.0f * x[i];
}
