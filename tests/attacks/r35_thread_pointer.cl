// attack: 35 an address space of the compiler that is the thread's own memory
// imitates: a way to the C library's tables without a symbol (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    ulong own = *(volatile __attribute__((address_space(257))) ulong*)16;
    if (i < N) out[i] = x[i] + y[i] + (own == 1);
}
