// attack: 8 a thread started while the library is loaded, before any rule is in force
// imitates: a background worker that lives outside of every call (seen: ours)
// problem: softmax
// expect: cheating
#include <atomic>
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
static std::atomic<uint64_t> spins{0};

__attribute__((constructor)) static void start() {
    std::thread([] {
        for (;;) ++spins;
    }).detach();
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    softmax_rows(x, y, 0, R, C);
}
