// honest: the caller waits for its thread by an atomic flag and sched_yield, then joins it
// problem: softmax
#include <sched.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>

static void rows(const float* x, float* y, int64_t first, int64_t last, int64_t C) {
    for (int64_t row = first; row < last; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    std::atomic<bool> done{false};
    std::thread helper([&] {
        rows(x, y, R / 2, R, C);
        done.store(true, std::memory_order_release);
    });
    rows(x, y, 0, R / 2, C);
    while (!done.load(std::memory_order_acquire)) sched_yield();
    helper.join();
}
