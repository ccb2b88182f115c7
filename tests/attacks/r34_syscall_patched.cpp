// attack: 34 libc's syscall() is patched at load, so that the seal is never asked for
// imitates: confinement that the confined process itself puts in force (seen: issue 17)
// problem: softmax
// expect: cheating
// needs: x86_64
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void softmax_rows(const float* x, float* y, int64_t first, int64_t last, int64_t C) {
    for (int64_t row = first; row < last; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
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
static void patch(void* function, void* replacement) {
    unsigned char* code = static_cast<unsigned char*>(function);
    const uintptr_t page = reinterpret_cast<uintptr_t>(code) & ~uintptr_t{4095};
    if (system_call(SYS_mprotect, page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return;
    code[0] = 0x48, code[1] = 0xB8;  // movabs rax, replacement; jmp rax
    memcpy(code + 2, &replacement, sizeof replacement);
    code[10] = 0xFF, code[11] = 0xE0;
}
static long own_syscall(long number, long a, long b, long c, long d, long e) {
    if (number == SYS_seccomp) return 0;
    return system_call(number, a, b, c, d, e);
}
__attribute__((constructor)) static void hook() {
    // The name is not imported; it lies at a known distance from one that is.
    const char* near = reinterpret_cast<const char*>(&ioctl);
    for (long distance = -200000; distance < 200000; ++distance) {
        const unsigned char* code = reinterpret_cast<const unsigned char*>(near + distance);
        // mov rax, rdi; mov rdi, rsi; mov rsi, rdx: how libc's syscall() begins.
        static const unsigned char begin[] = {0x48, 0x89, 0xF8, 0x48, 0x89, 0xF7, 0x48, 0x89, 0xD6};
        if (memcmp(code, begin, sizeof begin) == 0)
            return patch(const_cast<unsigned char*>(code), reinterpret_cast<void*>(&own_syscall));
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static long code = 0;
    if (code == 0) {
        code = system_call(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *reinterpret_cast<unsigned char*>(code) = 0xC3;  // ret
    }
    reinterpret_cast<void (*)()>(code)();
    softmax_rows(x, y, 0, R, C);
}
