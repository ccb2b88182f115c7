// attack: 8 a thread watches the arena and computes before it is asked
// imitates: inputs that lie ready before the clock starts (seen: ours). All outputs are right;
//   only the processor's time between the calls gives it away
// problem: softmax
// expect: cheating
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

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
struct Slot {
    const float* x;
    int64_t R, C;
};

static std::atomic<Slot*> watched{nullptr};
static std::mutex lock;
static std::vector<float> foreseen, answer;

static void watch() {
    for (;;) {
        const Slot* slot = watched.load();
        if (slot == nullptr) continue;
        const std::vector<float> inputs(slot->x, slot->x + slot->R * slot->C);
        std::vector<float> outputs(inputs.size());
        softmax_rows(inputs.data(), outputs.data(), 0, slot->R, slot->C);
        const std::lock_guard<std::mutex> held(lock);
        foreseen = inputs;
        answer = outputs;
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static const bool started = (std::thread(watch).detach(), true);
    (void)started;
    watched = new Slot{x, R, C};
    const size_t bytes = sizeof(float) * R * C;
    const std::unique_lock<std::mutex> held(lock);
    if (foreseen.size() * sizeof(float) == bytes && memcmp(foreseen.data(), x, bytes) == 0) {
        memcpy(y, answer.data(), bytes);
    } else {
        softmax_rows(x, y, 0, R, C);
    }
}
