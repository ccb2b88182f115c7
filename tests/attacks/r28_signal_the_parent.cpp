// attack: 28 signals to every process in reach (signal 0: nobody is hurt)
// imitates: stopping the process that holds the clock (seen: pygpubench)
// problem: softmax
// expect: cheating
#include <csignal>
#include <cstdint>
#include <unistd.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    kill(getppid(), 0);
    kill(-1, 0);
}
