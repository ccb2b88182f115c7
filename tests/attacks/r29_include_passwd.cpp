// attack: 29 a secret file is included, to be read from the compiler's messages
// imitates: #include as a way to read files (seen: trust.md)
// problem: softmax
// expect: compile_error
#include "/etc/passwd"
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
}
