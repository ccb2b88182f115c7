// attack: 8 once the checks seem over, the last rows are finished by a thread after the reply
// imitates: a reply a little too early, the rest done while the reference runs (seen: ours): what
//   counts is whether outputs are taken as they are at the reply
// problem: matmul
// expect: wrong_result
#include <condition_variable>
#include <cstdint>
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
struct Rest {
    std::mutex lock;
    std::condition_variable changed;
    const float *a = nullptr, *b = nullptr;
    float* c = nullptr;
    int64_t M = 0, N = 0, K = 0;

    Rest() { std::thread([this] { serve(); }).detach(); }

    void serve() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            changed.wait(held, [this] { return M > 0; });
            product(a, b, c, M, N, K);
            M = 0;
        }
    }
};

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static Rest* rest = new Rest;
    static int calls = 0;
    const int64_t late = ++calls > 24 ? M / 3 : 0;
    const int64_t mine = M - late;
    product(a, b, c, mine, N, K);
    if (late == 0) return;
    const std::lock_guard<std::mutex> held(rest->lock);
    rest->a = a + mine * K, rest->b = b, rest->c = c + mine * N;
    rest->N = N, rest->K = K, rest->M = late;
    rest->changed.notify_one();
}
