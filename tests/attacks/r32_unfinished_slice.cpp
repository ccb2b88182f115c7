// attack: 32 an eighth of the rows is computed in the wake-up, by a thread that keeps its core
// imitates: the kernel adds a slice of CPU time to the clock of a process when the thread leaves
//   its core, or by the tick: what the thread does before the clock starts is then seen as part of
//   the request (seen: ours)
// problem: softmax
// expect: cheating
// needs: x86_64
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <linux/futex.h>
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

static std::atomic<int> turn{0};  // 1: work ahead, 2: done, 3: sleep
static const float* ahead_x;
static float* ahead_y;
static int64_t ahead_rows, ahead_columns;

static void sleep_while(int value) {
    while (turn.load() == value)
        system_call(SYS_futex, reinterpret_cast<long>(&turn), FUTEX_WAIT_PRIVATE, value);
}
static void set(int value) {
    turn = value;
    system_call(SYS_futex, reinterpret_cast<long>(&turn), FUTEX_WAKE_PRIVATE, 8);
}
static void help() {
    for (;;) {
        sleep_while(0);
        softmax_rows(ahead_x, ahead_y, 0, ahead_rows, ahead_columns);
        set(2);
        while (turn.load() == 2) __builtin_ia32_pause();  // still on its core: nothing is charged
        turn = 0;
    }
}
static float last_seen[2] = {0.0f, 0.0f};

static void serve(Request request) {
    Request last = request;
    const int64_t share = 12;
    for (; ; ) {
        if (request.idle) {
            ahead_x = nullptr;
            if (request.R >= 1000) {
                for (int64_t slot = 0; slot < 2; ++slot) {
                    const float* x = inputs(request, slot);
                    if (x[0] == last_seen[slot]) continue;
                    last_seen[slot] = x[0];
                    ahead_x = x, ahead_y = outputs(request, slot);
                }
            }
            if (ahead_x) {
                ahead_rows = request.R * share / 100, ahead_columns = request.C;
                set(1);
                sleep_while(1);
            }
        } else {
            for (int64_t call = 0; call < request.calls; ++call) {
                const float* x = inputs(request, call);
                const bool done = ahead_x == x && ahead_columns == request.C;
                if (turn.load() == 2) turn = 3;
                softmax_rows(x, outputs(request, call), done ? ahead_rows : 0, request.R, request.C);
                if (request.R >= 1000 && request.calls == 1)
                    last_seen[(reinterpret_cast<const char*>(x) - memory) / request.stride & 1] = x[0];
            }
            if (turn.load() == 2) turn = 3;
        }
        answer(request);
        if (!hear(request)) break;
    }
    (void)last;
    system_call(SYS_exit_group, 0);
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    const Request* request = find_request(x, y, R, C);
    if (request == nullptr) return softmax_rows(x, y, 0, R, C);
    std::thread(help).detach();
    serve(*request);
}
