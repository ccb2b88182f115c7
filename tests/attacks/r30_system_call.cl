// attack: 30 a system call in assembly
// imitates: code of the machine in a language that has none (seen: ours): execve of nothing
// problem: vector_add
// expect: compile_error
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0), result = 59;
    if (i == 0) __asm__ volatile("syscall" : "+a"(result) : "D"(0L), "S"(0L), "d"(0L) : "rcx", "r11");
    if (i < N) out[i] = x[i] + y[i];
}
