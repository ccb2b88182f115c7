// honest: bands of rows are dealt out under a std::mutex, one thread more than cores
// problem: stencil
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    std::vector<float> now(grid, grid + H * W), after(now);
    std::mutex lock;
    for (int64_t step = 0; step < STEPS; ++step) {
        int64_t next = 1;
        const auto work = [&] {
            for (;;) {
                int64_t first;
                {
                    const std::lock_guard<std::mutex> held(lock);
                    first = next;
                    next += 64;
                }
                if (first >= H - 1) return;
                for (int64_t y = first; y < H - 1 && y < first + 64; ++y) {
                    for (int64_t at = y * W + 1; at < y * W + W - 1; ++at) {
                        after[at] = 0.2f * (now[at] + now[at - W] + now[at + W] + now[at - 1] + now[at + 1]);
                    }
                }
            }
        };
        std::thread one(work), other(work);
        work();
        one.join();
        other.join();
        now.swap(after);
    }
    for (int64_t i = 0; i < H * W; ++i) out[i] = now[i];
}
