// A 16 x 16 tile of C a block, an element a thread; tiles of A and B go through shared memory.
#define TILE 16
#pragma kernelcast grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE) block(TILE, TILE)
extern "C" __global__ void kernel(const float* a, const float* b, float* c, int M, int N, int K) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int start = 0; start < K; start += TILE) {
        as[y][x] = row < M && start + x < K ? a[row * K + start + x] : 0.0f;
        bs[y][x] = start + y < K && column < N ? b[(start + y) * N + column] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += as[y][k] * bs[k][x];
        __syncthreads();
    }
    if (row < M && column < N) c[row * N + column] = sum;
}
