// attack: 26 a library of 120 megabytes
// imitates: kept builds that fill the disk, and a load that fills the memory (seen: ours)
// problem: softmax
// expect: compile_error
#include <cstdint>

__asm__(".data\n.globl ballast\nballast:\n.fill 125829120, 1, 7\n.text\n");
extern "C" const char ballast[];

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)R, (void)C;
    y[0] = ballast[0];
}
