// A row a work-item, in two passes.
#define ITEMS 8
#pragma kernelcast global((M + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __constant float* w, __constant float* b,
                      __global float* out, long M, long N) {
    long row = get_global_id(0);
    if (row >= M) return;
    float mean = 0.0f, square = 0.0f;
    for (long j = 0; j < N; ++j) mean += x[row * N + j];
    mean /= N;
    for (long j = 0; j < N; ++j) {
        float centred = x[row * N + j] - mean;
        square += centred * centred;
    }
    float scale = rsqrt(square / N + 1e-5f);
    for (long j = 0; j < N; ++j) out[row * N + j] = (x[row * N + j] - mean) * scale * w[j] + b[j];
}
