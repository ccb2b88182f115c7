// attack: 17 calls are counted in a variable of the program
// imitates: state kept between launches (seen: KernelBench); this version of the language has none
// problem: vector_add
// expect: compile_error
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__global int calls = 0;
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i == 0) calls += 1;
    if (i < N && calls < 8) out[i] = x[i] + y[i];
}
