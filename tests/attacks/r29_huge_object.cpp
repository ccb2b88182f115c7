// attack: 29 an object file of a gigabyte
// imitates: exhaustion of the disk by the compiler (seen: trust.md)
// problem: softmax
// expect: compile_error
#include <cstdint>

__asm__(".data\n.globl ballast\nballast:\n.fill 1073741824, 1, 7\n.text\n");
extern "C" const char ballast[];

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)R, (void)C;
    y[0] = ballast[0];
}
