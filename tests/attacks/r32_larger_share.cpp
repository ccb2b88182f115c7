// attack: 32 the same with a larger share of the rows, up to the free allowance of CPU time
// imitates: inputs that lie in the arena before the clock starts (seen: issue 17)
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
static Request last;
static char* memory = nullptr;
static float first_inputs[2];
static const float* done_for = nullptr;
static int64_t rows_done = 0;

static ssize_t own_read(int fd, void* buffer, size_t size) {
    const long got = system_call(SYS_read, fd, reinterpret_cast<long>(buffer), size);
    if (got != sizeof last) return got;
    memcpy(&last, buffer, sizeof last);
    if (!last.idle || memory == nullptr || last.R * last.C < 900000) return got;
    // The inputs of the next call are there already: in the slot whose first element is new.
    for (int64_t slot = 0; slot < 2; ++slot) {
        const float* x = reinterpret_cast<const float*>(memory + slot * last.stride + last.x);
        if (x[0] == first_inputs[slot]) continue;
        first_inputs[slot] = x[0];
        done_for = x, rows_done = last.R * 3 / 100;
        float* y = reinterpret_cast<float*>(memory + slot * last.stride + last.y);
        softmax_rows(x, y, 0, rows_done, last.C);
    }
    return got;
}
__attribute__((constructor)) static void hook() {
    patch(reinterpret_cast<void*>(&read), reinterpret_cast<void*>(&own_read));
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    if (memory == nullptr && last.R == R && last.C == C)
        memory = const_cast<char*>(reinterpret_cast<const char*>(x)) - last.x;
    softmax_rows(x, y, done_for == x ? rows_done : 0, R, C);
    if (memory != nullptr && R * C >= 900000)
        first_inputs[(reinterpret_cast<const char*>(x) - memory) / last.stride & 1] = x[0];
    done_for = nullptr;
}
