// honest: two threads started at the first call, in step by a barrier after each sweep
// problem: stencil
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace {
struct Barrier {
    std::mutex lock;
    std::condition_variable changed;
    int waiting = 0, generation = 0;
    void wait() {
        std::unique_lock<std::mutex> held(lock);
        const int mine = generation;
        if (++waiting == 2) {
            waiting = 0;
            ++generation;
            changed.notify_all();
        } else {
            changed.wait(held, [&] { return generation != mine; });
        }
    }
};

struct Sweeps {
    std::vector<float> cells[2];
    int64_t H, W, STEPS;
    Barrier barrier;
    void half(int which) {
        const int64_t middle = H / 2;
        const int64_t first = which ? middle : 1, last = which ? H - 1 : middle;
        for (int64_t step = 0; step < STEPS; ++step) {
            const float* from = cells[step % 2].data();
            float* to = cells[1 - step % 2].data();
            for (int64_t y = first < 1 ? 1 : first; y < last; ++y) {
                for (int64_t at = y * W + 1; at < y * W + W - 1; ++at) {
                    to[at] = 0.2f * (from[at] + from[at - W] + from[at + W] + from[at - 1] + from[at + 1]);
                }
            }
            barrier.wait();
        }
    }
};

Sweeps* work = new Sweeps;
Barrier begin;

void helper() {
    for (;;) {
        begin.wait();
        work->half(1);
    }
}
}  // namespace

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    static const bool started = (std::thread(helper).detach(), true);
    (void)started;
    for (auto& cells : work->cells) cells.assign(grid, grid + H * W);
    work->H = H, work->W = W, work->STEPS = STEPS;
    begin.wait();
    work->half(0);
    const std::vector<float>& last = work->cells[STEPS % 2];
    for (int64_t i = 0; i < H * W; ++i) out[i] = last[i];
}
