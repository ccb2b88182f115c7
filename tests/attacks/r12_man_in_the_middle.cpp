// attack: 12 a thread between the harness and its own worker, which replies before the work is done
// imitates: taking over the protocol (seen: ours): a constructor learns the descriptors from the
//   command line, moves them to numbers that may be written to, and puts pipes of its own in their
//   place. The work is done, honestly, after the reply
// problem: softmax
// expect: cheating
// needs: x86_64
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/syscall.h>
#include <thread>

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
static long real_requests, own_replies;
static const long real_replies = 1, own_requests = 2;  // standard output and standard error

static void serve() {
    int64_t request[64], reply[2];
    system_call(SYS_read, own_replies, reinterpret_cast<long>(reply), sizeof reply);
    system_call(SYS_write, real_replies, reinterpret_cast<long>(reply), sizeof reply);
    for (int seen = 0;;) {
        const long bytes =
            system_call(SYS_read, real_requests, reinterpret_cast<long>(request), sizeof request);
        if (bytes <= 0) return;
        const bool stub = request[1] != 0, timed = request[bytes / 8 - 2] == 1024;
        if (timed && !stub) ++seen;
        const bool early = timed && !stub && seen > 1;
        const int64_t forged[2] = {request[0], 0};
        if (early) {
            system_call(SYS_write, real_replies, reinterpret_cast<long>(forged), sizeof forged);
        }
        system_call(SYS_write, own_requests, reinterpret_cast<long>(request), bytes);
        system_call(SYS_read, own_replies, reinterpret_cast<long>(reply), sizeof reply);
        if (!early) {
            system_call(SYS_write, real_replies, reinterpret_cast<long>(reply), sizeof reply);
        }
    }
}

__attribute__((constructor)) static void intercept(int count, char** arguments) {
    const long requests = atol(arguments[count - 2]), replies = atol(arguments[count - 1]);
    int to_worker[2], from_worker[2];
    system_call(SYS_pipe, reinterpret_cast<long>(to_worker));
    system_call(SYS_pipe, reinterpret_cast<long>(from_worker));
    real_requests = system_call(SYS_dup, requests);
    own_replies = from_worker[0];
    system_call(SYS_dup2, replies, real_replies);
    system_call(SYS_dup2, to_worker[1], own_requests);
    system_call(SYS_dup2, to_worker[0], requests);
    system_call(SYS_dup2, from_worker[1], replies);
    std::thread(serve).detach();
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    softmax_rows(x, y, 0, R, C);
}
