// attack: 32 a thread looks for new inputs every 50 microseconds and computes the first rows
// imitates: inputs that lie in the arena before the clock starts; the thread sleeps most of the
//   time (seen: ours)
// problem: softmax
// expect: cheating
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
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

static std::atomic<const float*> watched{nullptr};
static std::atomic<int64_t> rows{0};
static std::atomic<bool> busy{false};
static float* target;
static int64_t columns, all;
static uint32_t last_output;

static uint32_t bits(const float* at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}
static void watch() {
    for (;;) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        busy = true;
        const float* x = watched.load();
        // The outputs are overwritten last.
        if (x != nullptr && rows.load() == 0 && bits(target + all - 1) != last_output) {
            softmax_rows(x, target, 0, 64, columns);
            rows = 64;
        }
        busy = false;
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static const bool started = (std::thread(watch).detach(), true);
    (void)started;
    const bool foreseen = x == watched.load() && columns == C;
    watched = nullptr;
    while (busy.load()) {
    }
    softmax_rows(x, y, foreseen ? rows.load() : 0, R, C);
    if (R <= 1000) return;
    target = y, columns = C, all = R * C, last_output = bits(y + all - 1), rows = 0;
    watched = x;
}
