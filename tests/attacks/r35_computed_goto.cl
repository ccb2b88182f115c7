// attack: 35 a jump to an address that is a number, by an extension and without assembly
// imitates: a jump into the C library or into a constant (seen: ours)
// problem: vector_add
// expect: compile_error
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0);
    void* door = x[0] == 12345.0f ? (void*)(ulong)(x[1] + i) : &&inside;
    goto *door;
inside:
    if (i < N) out[i] = x[i] + y[i];
}
