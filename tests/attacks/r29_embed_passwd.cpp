// attack: 29 a secret file is embedded by the assembler
// imitates: .incbin, which no scan for #include finds (seen: ours)
// problem: softmax
// expect: compile_error
#include <cstdint>

__asm__(".section .rodata\n.globl secret\nsecret:\n.incbin \"/etc/passwd\"\n.byte 0\n.previous\n");
extern "C" const char secret[];

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)R, (void)C;
    y[0] = secret[0];
}
