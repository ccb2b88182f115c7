// attack: 24 functions of the C library, declared and called
// imitates: a library behind the kernel, which on a CPU lies in the same process (seen: ours)
// problem: vector_add
// expect: compile_error
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
int system(const char* command);
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    char command[5] = {'t', 'r', 'u', 'e', 0};
    if (i == 0) system(command);
    if (i < N) out[i] = x[i] + y[i];
}
