// honest: four columns a work-item in private memory
// problem: matmul
#define COLUMNS 4
#pragma kernelcast global((N + COLUMNS * 8 - 1) / (COLUMNS * 8) * 8, M) local(8, 1)
__kernel void compute(__global const float* a, __global const float* b, __global float* c, long M,
                      long N, long K) {
    long row = get_global_id(1), first = get_global_id(0) * COLUMNS;
    float sums[COLUMNS] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (long k = 0; k < K; ++k) {
        float factor = a[row * K + k];
        for (int j = 0; j < COLUMNS; ++j) {
            if (first + j < N) sums[j] += factor * b[k * N + first + j];
        }
    }
    for (int j = 0; j < COLUMNS; ++j) {
        if (first + j < N) c[row * N + first + j] = sums[j];
    }
}
