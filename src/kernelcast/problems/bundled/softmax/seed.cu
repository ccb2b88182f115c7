// A row a block: maximum and sum by a tree in shared memory.
#define THREADS 256
#pragma kernelcast grid(R) block(THREADS)
extern "C" __global__ void kernel(const float* x, float* y, int R, int C) {
    __shared__ float partial[THREADS];
    const float* row = x + (long long)blockIdx.x * C;
    float* out = y + (long long)blockIdx.x * C;
    int thread = threadIdx.x;

    float most = -INFINITY;
    for (int j = thread; j < C; j += THREADS) most = fmaxf(most, row[j]);
    partial[thread] = most;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) partial[thread] = fmaxf(partial[thread], partial[thread + half]);
        __syncthreads();
    }
    most = partial[0];
    __syncthreads();

    float sum = 0.0f;
    for (int j = thread; j < C; j += THREADS) sum += expf(row[j] - most);
    partial[thread] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) partial[thread] += partial[thread + half];
        __syncthreads();
    }
    sum = partial[0];

    for (int j = thread; j < C; j += THREADS) out[j] = expf(row[j] - most) / sum;
}
