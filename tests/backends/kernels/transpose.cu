// A tile in shared memory, padded against bank conflicts, so that reads and writes are in rows.
#define TILE 32
#define ROWS 8
#pragma kernelcast grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE) block(TILE, ROWS)
extern "C" __global__ void kernel(const float* x, float* out, int M, int N) {
    __shared__ float tile[TILE][TILE + 1];
    int j = blockIdx.x * TILE + threadIdx.x;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int i = blockIdx.y * TILE + r;
        if (i < M && j < N) tile[r][threadIdx.x] = x[i * N + j];
    }
    __syncthreads();
    int i = blockIdx.y * TILE + threadIdx.x;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int k = blockIdx.x * TILE + r;
        if (i < M && k < N) out[k * M + i] = tile[threadIdx.x][r];
    }
}
