// attack: 33 read() is patched to serve requests in the process itself, without the interpreter
// imitates: overhead that is subtracted although it does not arise (seen: issue 17)
// problem: softmax
// expect: cheating
// needs: x86_64
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
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
struct Request {
    int64_t nonce, idle, calls, stride, x, y, R, C;
};
static long request_fd, reply_fd;
static char* memory = nullptr;
static Request last;
static int slow_calls = 0;

static void spin(long turns) {
    for (volatile long turn = 0; turn < turns; turn = turn + 1) {
    }
}
static ssize_t own_read(int fd, void* buffer, size_t size) {
    for (;;) {
        const long got = system_call(SYS_read, fd, reinterpret_cast<long>(buffer), size);
        if (fd != request_fd || got != sizeof last) return got;
        memcpy(&last, buffer, sizeof last);
        if (memory == nullptr) return got;
        for (int64_t call = 0; call < last.calls && !last.idle; ++call) {
            char* slot = memory + call * last.stride;
            softmax_rows(reinterpret_cast<const float*>(slot + last.x),
                         reinterpret_cast<float*>(slot + last.y), 0, last.R, last.C);
        }
        const int64_t reply[2] = {last.nonce, 0};
        system_call(SYS_write, reply_fd, reinterpret_cast<long>(reply), sizeof reply);
    }
}
__attribute__((constructor)) static void hook(int count, char** arguments) {
    request_fd = atol(arguments[count - 2]), reply_fd = atol(arguments[count - 1]);
    patch(reinterpret_cast<void*>(&read), reinterpret_cast<void*>(&own_read));
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    if (last.R == R && last.C == C)
        memory = const_cast<char*>(reinterpret_cast<const char*>(x)) - last.x;
    softmax_rows(x, y, 0, R, C);
    (void)&spin, (void)slow_calls;
}
