// 64 x 64 tiles in shared memory, 4 x 4 sums a thread in registers.
#define TILE 64
#define DEPTH 16
#pragma kernelcast grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE) block(16, 16)
extern "C" __global__ void kernel(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ float as[DEPTH][TILE], bs[DEPTH][TILE];
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    int thread = threadIdx.y * 16 + threadIdx.x;
    float sums[4][4] = {};
    for (int start = 0; start < K; start += DEPTH) {
        for (int e = thread; e < TILE * DEPTH; e += 256) {
            int i = row + e / DEPTH, k = start + e % DEPTH;
            as[e % DEPTH][e / DEPTH] = i < M && k < K ? a[i * K + k] : 0.0f;
            k = start + e / TILE;
            int j = column + e % TILE;
            bs[e / TILE][e % TILE] = k < K && j < N ? b[k * N + j] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    sums[i][j] += as[k][threadIdx.y * 4 + i] * bs[k][threadIdx.x * 4 + j];
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            int m = row + threadIdx.y * 4 + i, n = column + threadIdx.x * 4 + j;
            if (m < M && n < N) c[m * N + n] = sums[i][j];
        }
}
