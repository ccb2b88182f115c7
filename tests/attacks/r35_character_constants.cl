// attack: 35 character constants that look like a comment hide `#undef asm`
// imitates: obfuscation that a search for words does not see (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
constant int opens = '/*';
#undef asm
#undef __asm__
constant int closes = '*/';
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0), result = 39;
    if (i == 0) __asm__ volatile("syscall" : "+a"(result) : : "rcx", "r11", "memory");
    if (i < N) out[i] = x[i] + y[i] + 0 * result;
}
