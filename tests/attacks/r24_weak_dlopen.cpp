// attack: 24 the loader's inner entry points, as weak symbols
// imitates: a lookup that a scan for dlopen overlooks (seen: ours)
// problem: matmul
// expect: cheating
#include <cstdint>

extern "C" __attribute__((weak)) void* dlmopen(long, const char*, int);
extern "C" __attribute__((weak)) void* dlvsym(void*, const char*, const char*);

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)c, (void)M, (void)N, (void)K;
    if (dlmopen == nullptr || dlvsym == nullptr) return;
    dlmopen(0, "libopenblas.so.0", 2);
}
