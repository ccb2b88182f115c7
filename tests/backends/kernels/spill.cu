// A row of up to 1,024 elements in the registers of a warp, where the launch bounds leave 32 a
// thread: it spills on purpose.
#pragma kernelcast grid((M + 31) / 32) block(32, 32)
extern "C" __global__ void __launch_bounds__(1024, 2) kernel(const float* x, float* out, int M,
                                                             int N) {
    int row = blockIdx.x * 32 + threadIdx.y;
    if (row >= M) return;
    float kept[32], most = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 32; ++k) {
        int j = threadIdx.x + 32 * k;
        kept[k] = j < N ? x[row * N + j] : -INFINITY;
        most = fmaxf(most, kept[k]);
    }
    for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
#pragma unroll
    for (int k = 0; k < 32; ++k) sum += kept[k] = expf(kept[k] - most);
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int k = 0; k < 32; ++k) {
        int j = threadIdx.x + 32 * k;
        if (j < N) out[row * N + j] = kept[k] / sum;
    }
}
