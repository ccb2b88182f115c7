// attack: 35 a system call lies in the middle of a constant, into which assembly jumps
// imitates: code that a list of instructions does not show (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
#undef __asm__
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0), result = 39;
    if (i == 0)
        __asm__ volatile("jmp 1f + 2\n1: movabs $0x0eeb9090050f, %%r11" : "+a"(result) : : "rcx", "r11");
    if (i < N) out[i] = x[i] + y[i] + 0 * result;
}
