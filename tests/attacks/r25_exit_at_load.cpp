// attack: 25 a constructor that leaves with status 0 before anything is measured
// imitates: sys.exit(0) at import (seen: pygpubench)
// problem: softmax
// expect: crash
#include <cstdint>
#include <cstdlib>

__attribute__((constructor)) static void leave() {
    _Exit(0);
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
}
