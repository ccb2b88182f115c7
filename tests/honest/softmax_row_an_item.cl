// honest: a row a work-item, without local memory
// problem: softmax
#pragma kernelcast global(M) local(1)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    long row = get_global_id(0) * N;
    float most = x[row], sum = 0.0f;
    for (long j = 1; j < N; ++j) most = max(most, x[row + j]);
    for (long j = 0; j < N; ++j) sum += out[row + j] = exp(x[row + j] - most);
    for (long j = 0; j < N; ++j) out[row + j] /= sum;
}
