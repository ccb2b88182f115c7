// attack: 26 thousands of threads (bounded here), all asleep
// imitates: exhaustion of threads and of addresses for their stacks (seen: ours)
// problem: softmax
// expect: crash
#include <chrono>
#include <cstdint>
#include <thread>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    (void)x, (void)y, (void)R, (void)C;
    for (int count = 0; count < 4000; ++count) {
        std::thread([] { std::this_thread::sleep_for(std::chrono::seconds(2)); }).detach();
    }
}
