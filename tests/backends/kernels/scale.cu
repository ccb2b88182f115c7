// Launch bounds without a launch: evidence takes the size of a block from them.
__global__ void __launch_bounds__(192, 4) kernel(const float* x, float* out, long long N) {
    for (long long i = blockIdx.x * 192ll + threadIdx.x; i < N; i += gridDim.x * 192ll) {
        out[i] = 2.0f * x[i];
    }
}
