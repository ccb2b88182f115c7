// attack: 1 an output that is not written at all
// imitates: a buffer in which the reference's answer still lies (seen: Sakana, KernelBench)
// problem: softmax
// expect: wrong_result
#pragma kernelcast global(M) local(1)
__kernel void compute(__global const float* x, __global float* out, long M, long N) {
}
