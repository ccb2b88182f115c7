// attack: 29 the entry is chosen by a resolver that runs while symbols are bound
// imitates: code that runs before there is a caller (seen: ours)
// problem: softmax
// expect: wrong_result
#include <cstdint>

extern "C" {
static void nothing(const float*, float*, int64_t, int64_t) {}
typedef void (*Kernel)(const float*, float*, int64_t, int64_t);
Kernel choose() { return nothing; }
void kernel(const float*, float*, int64_t, int64_t) __attribute__((ifunc("choose")));
}
