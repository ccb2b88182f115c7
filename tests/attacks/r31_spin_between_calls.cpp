// attack: 31 a thread that rests during the calls and streams through memory between them
// imitates: the same, but invisible to whoever looks at the kernel's own calls (seen: ours)
// problem: matmul
// expect: cheating
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
static std::atomic<bool> resting{true};

static void disturb() {
    std::vector<char> memory(size_t{64} << 20);
    for (size_t at = 0;; at = (at + 64) % memory.size()) {
        if (resting) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        } else {
            ++memory[at];
        }
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static const bool started = (std::thread(disturb).detach(), true);
    (void)started;
    resting = true;
    product(a, b, c, M, N, K);
    resting = false;
}
