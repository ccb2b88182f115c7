// attack: 27 a grandchild in a session of its own
// imitates: a process that survives the measurement and disturbs the next (seen: trust.md)
// problem: softmax
// expect: cheating
#include <cstdint>
#include <unistd.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    if (fork() != 0) return;
    setsid();
    if (fork() != 0) _exit(0);
    sleep(2);
    _exit(0);
}
