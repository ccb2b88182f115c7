// attack: 16 the problem's own files are opened
// imitates: reading the reference and its seeds from the harness's tree (seen: pygpubench)
// problem: softmax
// expect: cheating
#include <cstdint>
#include <fcntl.h>
#include <unistd.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)R, (void)C;
    const int file = open("../../problems/bundled/softmax/reference.py", O_RDONLY);
    if (read(file, y, 64) < 0) return;
}
