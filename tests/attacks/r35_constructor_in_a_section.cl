// attack: 35 assembly adds a constructor to the library
// imitates: code that runs when a library is loaded (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
#undef __asm__
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i == 0)
        __asm__ volatile(
            ".pushsection .text.before,\"ax\"\n7: ret\n.popsection\n"
            ".pushsection .init_array,\"aw\"\n.quad 7b\n.popsection\n");
    if (i < N) out[i] = x[i] + y[i];
}
