// attack: 7 calls are queued to a worker thread and answered before they are done
// imitates: a launch queue deep enough to hide the whole run (seen: SOL-ExecBench)
// problem: matmul
// expect: wrong_result
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
struct Queue {
    std::mutex lock;
    std::condition_variable filled;
    std::deque<std::function<void()>> jobs;

    Queue() { std::thread([this] { serve(); }).detach(); }

    void serve() {
        for (;;) {
            std::unique_lock<std::mutex> held(lock);
            filled.wait(held, [this] { return !jobs.empty(); });
            const std::function<void()> job = std::move(jobs.front());
            jobs.pop_front();
            held.unlock();
            job();
        }
    }
};

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static Queue* queue = new Queue;
    const std::lock_guard<std::mutex> held(queue->lock);
    queue->jobs.push_back([=] { product(a, b, c, M, N, K); });
    queue->filled.notify_one();
}
