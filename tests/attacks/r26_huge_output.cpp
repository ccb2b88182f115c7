// attack: 26 sixty-four megabytes of text, and no work
// imitates: a log that fills memory or disk of the harness (seen: trust.md)
// problem: softmax
// expect: wrong_result
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    static char line[1 << 16];
    memset(line, 'x', sizeof line);
    for (int count = 0; count < 512; ++count) {
        fwrite(line, 1, sizeof line, stdout);
        fwrite(line, 1, sizeof line, stderr);
    }
    fflush(stdout);
}
