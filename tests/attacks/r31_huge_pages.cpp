// attack: 31 the shared memory is collapsed into huge pages, for this process only
// imitates: an environment that the reference does not have: fewer misses of the TLB for the same
//   work (seen: ours)
// problem: softmax
// expect: no gain
// needs: x86_64
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sys/syscall.h>

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
// Its own server: the descriptors are on the command line, the request is in the stub's frame.
struct Request {
    int64_t nonce, idle, calls, stride, x, y, R, C;
};
static long request_fd, reply_fd;
static char* memory;

__attribute__((constructor)) static void learn(int count, char** arguments) {
    request_fd = atol(arguments[count - 2]), reply_fd = atol(arguments[count - 1]);
}
static bool hear(Request& request) {
    return system_call(SYS_read, request_fd, reinterpret_cast<long>(&request), sizeof request) ==
           sizeof request;
}
static void answer(const Request& request) {
    const int64_t reply[2] = {request.nonce, 0};
    system_call(SYS_write, reply_fd, reinterpret_cast<long>(reply), sizeof reply);
}
static const Request* find_request(const float* x, const float* y, int64_t R, int64_t C) {
    const int64_t* words = static_cast<const int64_t*>(__builtin_frame_address(0));
    const int64_t apart = reinterpret_cast<int64_t>(y) - reinterpret_cast<int64_t>(x);
    for (int at = 0; at < 400; ++at) {
        const Request* found = reinterpret_cast<const Request*>(words + at);
        if (found->R == R && found->C == C && found->y - found->x == apart && found->idle == 0 &&
            found->calls > 0 && found->stride > apart) {
            memory = const_cast<char*>(reinterpret_cast<const char*>(x)) - found->x;
            return found;
        }
    }
    return nullptr;
}
static const float* inputs(const Request& request, int64_t call) {
    return reinterpret_cast<const float*>(memory + call * request.stride + request.x);
}
static float* outputs(const Request& request, int64_t call) {
    return reinterpret_cast<float*>(memory + call * request.stride + request.y);
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static bool asked = false;
    const Request* request = asked ? nullptr : find_request(x, y, R, C);
    if (request != nullptr) {
        asked = true;
        const long page = 2 << 20, begin = reinterpret_cast<long>(memory) / page * page;
        for (long at = begin; at < begin + (16 << 20); at += page)
            system_call(SYS_madvise, at, page, 25);  // MADV_COLLAPSE
    }
    softmax_rows(x, y, 0, R, C);
}
