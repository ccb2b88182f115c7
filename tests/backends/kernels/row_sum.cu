// A row a block: a tree in dynamic shared memory.
#define THREADS 512
#pragma kernelcast grid(M) block(THREADS) shared(4 * THREADS)
extern "C" __global__ void kernel(const float* x, float* out, int M, int N) {
    extern __shared__ float partial[];
    float sum = 0.0f;
    for (int j = threadIdx.x; j < N; j += THREADS) sum += x[(long long)blockIdx.x * N + j];
    partial[threadIdx.x] = sum;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
