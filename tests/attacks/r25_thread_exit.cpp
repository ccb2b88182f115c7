// attack: 25 only the calling thread ends, the process stays
// imitates: a worker that dies quietly and is taken for idle (seen: ours)
// problem: softmax
// expect: timeout
// needs: x86_64
#include <cstdint>
#include <sys/syscall.h>
#include <thread>

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
    std::thread([] { std::this_thread::sleep_for(std::chrono::seconds(30)); }).detach();
    system_call(SYS_exit, 0);
}
