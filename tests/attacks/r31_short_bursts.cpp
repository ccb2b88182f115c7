// attack: 31 a thread that sleeps most of the time, and wakes for bursts after each call
// imitates: disturbance kept below a coarse threshold (seen: ours)
// problem: softmax
// expect: cheating
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
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
static std::atomic<int> calls{0};

static void burst() {
    using clock = std::chrono::steady_clock;
    for (int seen = 0;;) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        if (seen == calls) continue;
        seen = calls;
        const auto until = clock::now() + std::chrono::milliseconds(3);
        while (clock::now() < until) {
        }
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static const bool started = (std::thread(burst).detach(), true);
    (void)started;
    softmax_rows(x, y, 0, R, C);
    ++calls;
}
