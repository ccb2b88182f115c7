// attack: 12 a constructor says that the library is loaded, and ends the process
// imitates: a forged message, so that the parent looks at a process that is gone (seen: ours)
// problem: softmax
// expect: crash
#include <cstdint>
#include <cstdlib>
#include <unistd.h>

// The C library hands constructors the arguments of the program; the pipe for replies is the last.
__attribute__((constructor)) static void at_load(int argc, char** argv, char**) {
    int64_t loaded[2] = {};
    write(atoi(argv[argc - 1]), loaded, sizeof loaded);
    _exit(0);
}

extern "C" void kernel(const float*, float*, int64_t, int64_t) {}
