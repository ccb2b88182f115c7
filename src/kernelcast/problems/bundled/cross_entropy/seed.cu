// A row a block: maximum and sum by a tree in shared memory, then loss and gradient.
#define THREADS 256
#pragma kernelcast grid(R) block(THREADS)
extern "C" __global__ void kernel(const float* logits, const long long* labels, float* loss,
                                  float* gradient, int R, int C) {
    __shared__ float partial[THREADS];
    const float* row = logits + (long long)blockIdx.x * C;
    float* slope = gradient + (long long)blockIdx.x * C;
    int thread = threadIdx.x, label = (int)labels[blockIdx.x];

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

    if (thread == 0) loss[blockIdx.x] = logf(sum) - (row[label] - most);
    for (int j = thread; j < C; j += THREADS) {
        slope[j] = expf(row[j] - most) / sum - (j == label ? 1.0f : 0.0f);
    }
}
