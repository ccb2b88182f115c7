// attack: 11 pointers to the kernel in the caller's stack frames are exchanged for another function
// imitates: patching the table of functions that the harness calls through (seen: ours)
// problem: softmax
// expect: wrong_result
// needs: x86_64
#include <cstdint>

extern "C" void* __libc_stack_end;
extern "C" void nothing() {}
extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C);

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    uintptr_t* from = static_cast<uintptr_t*>(__builtin_frame_address(0));
    uintptr_t* to = static_cast<uintptr_t*>(__libc_stack_end);
    const uintptr_t own = reinterpret_cast<uintptr_t>(&kernel);
    for (; from < to; ++from) {
        if (*from == own) *from = reinterpret_cast<uintptr_t>(&nothing);
    }
}
