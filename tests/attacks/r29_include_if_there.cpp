// attack: 29 the harness's own files are asked for, and compiled in if they are there
// imitates: __has_include as a probe of the file system (seen: ours)
// problem: softmax
// expect: wrong_result
#include <cstdint>

#if __has_include("/etc/passwd") || __has_include("/root/.bashrc") || \
    __has_include("/work/main/src/kernelcast/problems/bundled/softmax/seed.cpp")
#define FOUND 1.0f
#else
#define FOUND 0.0f
#endif

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x;
    for (int64_t at = 0; at < R * C; ++at) y[at] = FOUND;
}
