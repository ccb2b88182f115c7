// attack: 30 a system call by the 32-bit door
// imitates: int 0x80, whose numbers differ from those a filter knows (seen: ours)
// problem: softmax
// expect: cheating
// needs: x86_64
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    // 5 is open() there, and write-only flags make it harmless: the path is not valid in 32 bits.
    long result = 5;
    __asm__ volatile("int $0x80" : "+a"(result) : "b"(0L), "c"(0L), "d"(0L) : "memory");
}
