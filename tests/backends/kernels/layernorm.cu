// A row a warp, four rows a block; two passes.
#pragma kernelcast grid((M + 3) / 4) block(32, 4)
__device__ float warp_sum(float value) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
extern "C" __global__ void kernel(const float* x, const float* w, const float* b, float* out, int M,
                                  int N) {
    int row = blockIdx.x * 4 + threadIdx.y;
    if (row >= M) return;
    float sum = 0.0f, squares = 0.0f;
    for (int j = threadIdx.x; j < N; j += 32) sum += x[row * N + j];
    float mean = warp_sum(sum) / N;
    for (int j = threadIdx.x; j < N; j += 32) {
        float apart = x[row * N + j] - mean;
        squares += apart * apart;
    }
    float scale = rsqrtf(warp_sum(squares) / N + 1e-5f);
    for (int j = threadIdx.x; j < N; j += 32) {
        out[row * N + j] = (x[row * N + j] - mean) * scale * w[j] + b[j];
    }
}
