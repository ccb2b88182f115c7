// attack: 8 a table for the next call is made by a thread after the reply
// imitates: speculation outside of the timed region (seen: pygpubench). What is made is useful and
//   right: powers of e for all multiples of 2^-16; but it is made anew, off the clock, every time
// problem: softmax
// expect: cheating
#include <atomic>
#include <cmath>
#include <cstdint>
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
static std::vector<double> table(1 << 20);
static std::atomic<int> calls{0};

static void prepare() {
    int seen = 0;
    for (;;) {
        if (calls.load() == seen) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            continue;
        }
        seen = calls.load();
        for (size_t at = 0; at < table.size(); ++at) table[at] = std::exp(at * 0x1p-16 - seen % 3);
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static const bool started = (std::thread(prepare).detach(), true);
    (void)started;
    softmax_rows(x, y, 0, R, C);
    ++calls;
}
