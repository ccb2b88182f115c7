// A row a block: mean and variance in two passes, each summed by shuffles and shared memory.
#define THREADS 128
#define WARPS (THREADS / 32)
#pragma kernelcast grid(R) block(THREADS)
__device__ float block_sum(float value) {
    __shared__ float partial[WARPS];
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < WARPS; ++w) sum += partial[w];
    return sum;
}

extern "C" __global__ void kernel(const float* x, const float* gamma, const float* beta, float* y,
                                  int R, int C) {
    const float* row = x + (long long)blockIdx.x * C;
    float* out = y + (long long)blockIdx.x * C;

    float sum = 0.0f;
    for (int j = threadIdx.x; j < C; j += THREADS) sum += row[j];
    float mean = block_sum(sum) / C;

    float squares = 0.0f;
    for (int j = threadIdx.x; j < C; j += THREADS) {
        float apart = row[j] - mean;
        squares += apart * apart;
    }
    float scale = rsqrtf(block_sum(squares) / C + 1e-5f);

    for (int j = threadIdx.x; j < C; j += THREADS) {
        out[j] = (row[j] - mean) * scale * gamma[j] + beta[j];
    }
}
