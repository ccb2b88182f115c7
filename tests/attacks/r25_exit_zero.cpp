// attack: 25 exit(0) in the middle of the call
// imitates: a clean exit status taken for a pass (seen: SOL-ExecBench)
// problem: softmax
// expect: crash
#include <cstdint>
#include <cstdlib>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    std::exit(0);
}
