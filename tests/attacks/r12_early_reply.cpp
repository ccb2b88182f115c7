// attack: 12 the nonce is looked for on the stack, and the reply written before the work
// imitates: a reply sent early, so that the clock stops while the kernel computes (seen: ours)
// problem: matmul
// expect: cheating
// needs: x86_64
#include <cstdint>
#include <sys/syscall.h>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
// No symbol is imported for it, so nothing shows in the library's table of symbols.
static long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                        long f = 0) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
extern "C" void* __libc_stack_end;

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const int64_t* from = static_cast<int64_t*>(__builtin_frame_address(0));
    const int64_t* to = static_cast<int64_t*>(__libc_stack_end);
    int64_t reply[2] = {0, 0};
    for (; from < to; ++from) {
        // A nonce is large, and no pointer: those have their upper 16 bits clear.
        if (*from >> 48 > 0) reply[0] = *from;
    }
    for (long fd = 3; fd < 16; ++fd) system_call(SYS_write, fd, reinterpret_cast<long>(reply), 16);
    product(a, b, c, M, N, K);
}
