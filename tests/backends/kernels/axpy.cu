// A grid-stride loop over four elements at a time; the tail one by one.
#define THREADS 128
#pragma kernelcast grid((N / 4 + THREADS) / THREADS) block(THREADS)
extern "C" __global__ void kernel(const float* __restrict__ x, const float* __restrict__ y,
                                  float* __restrict__ out, int N) {
    int stride = gridDim.x * blockDim.x, start = blockIdx.x * blockDim.x + threadIdx.x;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    const float4* y4 = reinterpret_cast<const float4*>(y);
    float4* out4 = reinterpret_cast<float4*>(out);
    for (int i = start; i < N / 4; i += stride) {
        float4 a = x4[i], b = y4[i];
        out4[i] = make_float4(fmaf(2.5f, a.x, b.x), fmaf(2.5f, a.y, b.y), fmaf(2.5f, a.z, b.z),
                              fmaf(2.5f, a.w, b.w));
    }
    for (int i = N / 4 * 4 + start; i < N; i += stride) out[i] = fmaf(2.5f, x[i], y[i]);
}
