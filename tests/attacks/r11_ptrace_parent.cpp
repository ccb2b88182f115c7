// attack: 11 the parent is to be held by ptrace while the clock runs
// imitates: a debugger on the process with the clock (seen: pygpubench)
// problem: softmax
// expect: cheating
#include <cstdint>
#include <sys/ptrace.h>
#include <unistd.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr);
}
