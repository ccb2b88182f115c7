// attack: 11 ptrace and the parent's memory, in assembly
// imitates: process_vm_writev into the harness (seen: pygpubench)
// problem: softmax
// expect: cheating
// needs: x86_64
#include <cstdint>
#include <sys/syscall.h>

// No symbol is imported for it, so nothing shows in the library's table of symbols.
static long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                        long f = 0) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    const long parent = system_call(SYS_getppid);
    system_call(SYS_process_vm_writev, parent, 0, 0, 0, 0, 0);
}
