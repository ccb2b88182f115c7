// One block counts in shared memory by atomic additions and writes every bin once.
#pragma kernelcast grid(1) block(1024) shared(4 * B)
extern "C" __global__ void kernel(const int* x, int* out, int N, int B) {
    extern __shared__ int counts[];
    for (int b = threadIdx.x; b < B; b += blockDim.x) counts[b] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < N; i += blockDim.x) atomicAdd(&counts[x[i]], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < B; b += blockDim.x) out[b] = counts[b];
}
