// attack: 35 machine code as data in the section of the code, and a computed call
// imitates: code that a compiler never saw (seen: ours)
// problem: vector_add
// expect: cheating
// needs: x86_64
#define ITEMS 64
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
#undef __asm__
__kernel void compute(__global const float* x, __global const float* y, __global float* out, long N) {
    long i = get_global_id(0), result = 39;
    if (i == 0)
        __asm__ volatile(
            ".pushsection .text.door,\"ax\"\n"
            ".type door%=,@object\ndoor%=: .byte 0x0f, 0x05, 0xc3\n.size door%=, 3\n"
            ".popsection\n"
            "lea door%=(%%rip), %%r10\n call *%%r10"
            : "+a"(result) : : "rcx", "r10", "r11");
    if (i < N) out[i] = x[i] + y[i] + 0 * result;
}
