// honest: a queue of std::packaged_task, served by a thread that lives as long as the process
// problem: conv2d
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

class Queue {
public:
    Queue() : server([this] { serve(); }) { server.detach(); }

    std::future<void> add(std::packaged_task<void()> task) {
        std::future<void> done = task.get_future();
        {
            const std::lock_guard<std::mutex> held(lock);
            tasks.push_back(std::move(task));
        }
        arrived.notify_one();
        return done;
    }

private:
    void serve() {
        for (;;) {
            std::unique_lock<std::mutex> held(lock);
            arrived.wait(held, [this] { return !tasks.empty(); });
            std::packaged_task<void()> task = std::move(tasks.front());
            tasks.pop_front();
            held.unlock();
            task();
        }
    }

    std::mutex lock;
    std::condition_variable arrived;
    std::deque<std::packaged_task<void()>> tasks;
    std::thread server;
};

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    static Queue* queue = new Queue;
    const auto filters = [=](int64_t first, int64_t last) {
        for (int64_t n = 0; n < N; ++n) {
            for (int64_t f = first; f < last; ++f) {
                for (int64_t at = 0; at < H * W; ++at) {
                    const int64_t y = at / W, x = at % W;
                    float sum = 0.0f;
                    for (int64_t c = 0; c < C; ++c) {
                        for (int64_t ky = 0; ky < KH; ++ky) {
                            const int64_t row = y + ky - KH / 2;
                            if (row < 0 || row >= H) continue;
                            for (int64_t kx = 0; kx < KW; ++kx) {
                                const int64_t column = x + kx - KW / 2;
                                if (column < 0 || column >= W) continue;
                                sum += image[((n * C + c) * H + row) * W + column] *
                                       weight[((f * C + c) * KH + ky) * KW + kx];
                            }
                        }
                    }
                    out[(n * F + f) * H * W + at] = sum;
                }
            }
        }
    };
    std::future<void> upper = queue->add(std::packaged_task<void()>([=] { filters(F / 2, F); }));
    filters(0, F / 2);
    upper.get();
}
