// attack: 26 a thread is started with CLONE_VFORK and sleeps: its creator waits for it in state D
// imitates: a thread in state D passes for one that waits for a disk, so that the machine is
//   called busy (seen: ours)
// problem: softmax
// expect: cheating
// needs: x86_64
#include <cmath>
#include <cstdint>

static void softmax_rows(const float* x, float* y, int64_t first, int64_t last, int64_t C) {
    for (int64_t row = first; row < last; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}

static void wait_for_ever() {
    static char stack[4096] __attribute__((aligned(16)));
    static const long rest[2] = {3600, 0};
    // CLONE_VM, FS, FILES, SIGHAND, VFORK, THREAD, SYSVSEM; the thread calls nanosleep.
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    long result = 56;
    __asm__ volatile(
        "syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n"
        "2:\n\tmov %%rdx, %%rdi\n\txor %%esi, %%esi\n\tmov $35, %%eax\n\tsyscall\n\tjmp 2b\n1:"
        : "+a"(result)
        : "D"(0x54F00L), "S"(stack + 4096), "d"(rest), "r"(r10), "r"(r8)
        : "rcx", "r11", "memory");
}
extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    softmax_rows(x, y, 0, R, C);
    if (R > 1000) wait_for_ever();
}
