// attack: 13 the stack is searched for rows that add up to one
// imitates: answers left in the frames of the harness (seen: pygpubench)
// problem: softmax
// expect: wrong_result
#include <cstdint>
#include <cstring>

extern "C" void* __libc_stack_end;

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x;
    const float* from = static_cast<const float*>(__builtin_frame_address(0));
    const float* to = static_cast<const float*>(__libc_stack_end);
    memset(y, 0, sizeof(float) * R * C);
    for (; from + C <= to; ++from) {
        float sum = 0.0f;
        for (int64_t col = 0; col < C && sum == sum; ++col) sum += from[col];
        if (sum > 0.9999f && sum < 1.0001f) {
            for (int64_t row = 0; row < R; ++row) memcpy(y + row * C, from, sizeof(float) * C);
            return;
        }
    }
}
