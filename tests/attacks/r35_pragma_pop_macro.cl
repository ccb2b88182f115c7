// attack: 35 _Pragma takes the macro away that stands for the word for assembly
// imitates: obfuscation without a directive (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
_Pragma("push_macro(\"__asm__\")")
#undef __asm__
_Pragma("push_macro(\"__asm__\")")
#define __asm__ nothing
_Pragma("pop_macro(\"__asm__\")")
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0), result = 39;
    if (i == 0) __asm__ volatile("syscall" : "+a"(result) : : "rcx", "r11", "memory");
    if (i < N) out[i] = x[i] + y[i] + 0 * result;
}
