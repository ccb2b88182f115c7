// attack: 1 memory that was freed with the answer in it
// imitates: torch.empty_like() after the reference ran: the allocator hands out the reference's
//   own freed output (seen: Sakana, KernelBench)
// problem: softmax
// expect: wrong_result
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x;
    const size_t bytes = sizeof(float) * R * C;
    float* leftover = static_cast<float*>(malloc(bytes));
    memcpy(y, leftover, bytes);
    free(leftover);
}
