// A 32 x 32 tile a block. The tile and a halo of STEPS cells make all sweeps in shared memory, from
// one copy to the other and back; with each sweep, a ring of the halo is no longer right.
#define TILE 32
#define ROWS 8
#pragma kernelcast grid((W + TILE - 1) / TILE, (H + TILE - 1) / TILE) block(TILE, ROWS) shared(8 * (TILE + 2 * STEPS) * (TILE + 2 * STEPS))
extern "C" __global__ void kernel(const float* grid, float* out, int H, int W, int STEPS) {
    extern __shared__ float cells[];
    int side = TILE + 2 * STEPS;
    int top = blockIdx.y * TILE - STEPS, left = blockIdx.x * TILE - STEPS;
    float *now = cells, *after = cells + side * side;

    for (int r = threadIdx.y; r < side; r += ROWS) {
        for (int c = threadIdx.x; c < side; c += TILE) {
            int i = top + r, j = left + c;
            now[r * side + c] = i >= 0 && i < H && j >= 0 && j < W ? grid[i * W + j] : 0.0f;
        }
    }
    __syncthreads();

    for (int step = 1; step <= STEPS; ++step) {
        for (int r = step + threadIdx.y; r < side - step; r += ROWS) {
            for (int c = step + threadIdx.x; c < side - step; c += TILE) {
                int i = top + r, j = left + c;
                const float* cell = now + r * side + c;
                bool inside = i > 0 && i < H - 1 && j > 0 && j < W - 1;
                float sum = cell[0] + cell[-side] + cell[side] + cell[-1] + cell[1];
                after[r * side + c] = inside ? 0.2f * sum : cell[0];
            }
        }
        __syncthreads();
        float* kept = now;
        now = after;
        after = kept;
    }

    int j = blockIdx.x * TILE + threadIdx.x;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int i = blockIdx.y * TILE + r;
        if (i < H && j < W) out[i * W + j] = now[(STEPS + r) * side + STEPS + threadIdx.x];
    }
}
