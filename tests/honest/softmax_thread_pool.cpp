// honest: a pool of threads kept between calls, asleep while there is nothing to do
// problem: softmax
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
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
class Helper {
public:
    Helper() { std::thread([this] { serve(); }).detach(); }

    void begin(std::function<void()> given) {
        const std::lock_guard<std::mutex> held(lock);
        job = std::move(given);
        changed.notify_all();
    }

    void wait() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return !job; });
    }

private:
    void serve() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            changed.wait(held, [this] { return static_cast<bool>(job); });
            job();
            job = nullptr;
            changed.notify_all();
        }
    }

    std::mutex lock;
    std::condition_variable changed;
    std::function<void()> job;
};

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    static Helper* helper = new Helper;
    helper->begin([=] { softmax_rows(x, y, R / 2, R, C); });
    softmax_rows(x, y, 0, R / 2, C);
    helper->wait();
}
