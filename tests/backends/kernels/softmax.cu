// A row a block: maximum and sum by warp shuffles, then through shared memory.
#pragma kernelcast grid(M) block(256)
__device__ float combine(float value, bool is_sum) {
    __shared__ float partial[8];
    for (int step = 16; step; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = is_sum ? value + other : fmaxf(value, other);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[0];
    for (int w = 1; w < 8; ++w) value = is_sum ? value + partial[w] : fmaxf(value, partial[w]);
    return value;
}
extern "C" __global__ void kernel(const float* x, float* out, int M, int N) {
    const float* row = x + (long long)blockIdx.x * N;
    float most = -INFINITY, sum = 0.0f;
    for (int j = threadIdx.x; j < N; j += 256) most = fmaxf(most, row[j]);
    most = combine(most, false);
    for (int j = threadIdx.x; j < N; j += 256) sum += expf(row[j] - most);
    sum = combine(sum, true);
    for (int j = threadIdx.x; j < N; j += 256) {
        out[(long long)blockIdx.x * N + j] = expf(row[j] - most) / sum;
    }
}
