// attack: 11 the first bytes of a libc function are overwritten with a jump
// imitates: detours of the timer or of write() in the harness's process (seen: pygpubench)
// problem: softmax
// expect: cheating
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    int (*function)(int) = &abs;
    unsigned char* code = reinterpret_cast<unsigned char*>(function);
    const uintptr_t page = reinterpret_cast<uintptr_t>(code) & ~uintptr_t{4095};
    mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    code[0] = 0xC3;
}
