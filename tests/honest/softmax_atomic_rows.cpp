// honest: threads take rows from an atomic counter until none is left
// problem: softmax
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t first; (first = next.fetch_add(16)) < R;) {
            for (int64_t row = first; row < R && row < first + 16; ++row) {
                const float* in = x + row * C;
                float largest = in[0], sum = 0.0f;
                for (int64_t col = 1; col < C; ++col) largest = std::fmax(largest, in[col]);
                for (int64_t col = 0; col < C; ++col) sum += y[row * C + col] = std::exp(in[col] - largest);
                for (int64_t col = 0; col < C; ++col) y[row * C + col] /= sum;
            }
        }
    };
    std::thread other(work);
    work();
    other.join();
}
