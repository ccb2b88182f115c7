// attack: 35 assembly makes a section that can be written and executed
// imitates: code that is written while it runs (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
#undef __asm__
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    if (i == 0) __asm__ volatile(".pushsection .patch,\"awx\"\n.fill 4096, 1, 0x90\n.popsection\n");
    if (i < N) out[i] = x[i] + y[i];
}
