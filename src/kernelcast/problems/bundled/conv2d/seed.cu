// An element of the output a thread; weights of one filter go through shared memory.
#define THREADS 128
#pragma kernelcast grid((H * W + THREADS - 1) / THREADS, F, N) block(THREADS) shared(4 * C * KH * KW)
extern "C" __global__ void kernel(const float* image, const float* weight, float* out, int N, int C,
                                  int F, int H, int W, int KH, int KW) {
    extern __shared__ float filter[];
    int f = blockIdx.y, n = blockIdx.z, taps = C * KH * KW;
    for (int e = threadIdx.x; e < taps; e += THREADS) filter[e] = weight[f * taps + e];
    __syncthreads();

    int pixel = blockIdx.x * THREADS + threadIdx.x;
    if (pixel >= H * W) return;
    int y = pixel / W, x = pixel % W;
    float sum = 0.0f;
    for (int c = 0; c < C; ++c) {
        for (int ky = 0; ky < KH; ++ky) {
            for (int kx = 0; kx < KW; ++kx) {
                int row = y + ky - KH / 2, column = x + kx - KW / 2;
                if (row >= 0 && row < H && column >= 0 && column < W) {
                    sum += image[((n * C + c) * H + row) * W + column] *
                           filter[(c * KH + ky) * KW + kx];
                }
            }
        }
    }
    out[((n * F + f) * H + y) * W + x] = sum;
}
