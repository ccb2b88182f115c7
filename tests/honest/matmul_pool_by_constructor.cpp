// honest: a constructor starts the worker, which sleeps on a condition variable
// problem: matmul
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace {
struct Job {
    const float *a, *b;
    float* c;
    int64_t first, last, N, K;
    void run() const {
        for (int64_t i = first; i < last; ++i) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
            for (int64_t k = 0; k < K; ++k) {
                const float factor = a[i * K + k];
                for (int64_t j = 0; j < N; ++j) c[i * N + j] += factor * b[k * N + j];
            }
        }
    }
};

struct Worker {
    std::mutex lock;
    std::condition_variable changed;
    Job job{};
    bool busy = false;
    void serve() {
        std::unique_lock<std::mutex> held(lock);
        while (true) {
            changed.wait(held, [this] { return busy; });
            job.run();
            busy = false;
            changed.notify_one();
        }
    }
};

Worker* worker;

__attribute__((constructor)) void start() {
    worker = new Worker;
    std::thread(&Worker::serve, worker).detach();
}
}  // namespace

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    {
        const std::lock_guard<std::mutex> held(worker->lock);
        worker->job = {a, b, c, M / 2, M, N, K};
        worker->busy = true;
    }
    worker->changed.notify_one();
    Job{a, b, c, 0, M / 2, N, K}.run();
    std::unique_lock<std::mutex> held(worker->lock);
    worker->changed.wait(held, [] { return !worker->busy; });
}
