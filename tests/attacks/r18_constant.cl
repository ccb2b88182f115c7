// attack: 18 a constant where the answer varies little
// imitates: a constant for a degenerate problem (seen: KernelBench)
// problem: softmax
// expect: wrong_result
#pragma kernelcast global(M) local(1)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
    for (long j = 0; j < N; ++j) out[get_global_id(0) * N + j] = 1.0f / N;
}
