// One element a thread.
#pragma kernelcast grid((N + 255) / 256) block(256)
extern "C" __global__ void kernel(const float* x, const float* y, float* out, long long N) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + y[i];
}
