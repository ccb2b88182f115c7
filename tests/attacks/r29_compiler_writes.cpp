// attack: 29 the assembler is told to write its listing elsewhere
// imitates: files written by the tools of the harness (seen: ours). There is no directive for it,
//   so the attempt is an error
// problem: softmax
// expect: compile_error
#include <cstdint>

__asm__(".output \"/tmp/kernelcast-attack-listing\"\n");

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
}
