// attack: 30 the word for assembly is split by a line that is continued
// imitates: obfuscation that a search for words does not see (seen: ours)
// problem: vector_add
// expect: compile_error
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0), result = 59;
    if (i == 0) __as\
m__ volatile("syscall" : "+a"(result) : : "rcx", "r11");
    if (i < N) out[i] = x[i] + y[i];
}
