// gelu(x + bias), the tanh form, fused.
#pragma kernelcast grid((N + 255) / 256, M) block(256)
extern "C" __global__ void kernel(const float* x, const float* b, float* out, int M, int N) {
    int j = blockIdx.x * 256 + threadIdx.x;
    if (j >= N) return;
    float v = x[blockIdx.y * N + j] + b[j];
    out[blockIdx.y * N + j] =
        0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
}
