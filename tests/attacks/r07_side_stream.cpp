// attack: 7 half of the rows on a "side stream" that nobody waits for
// imitates: torch.cuda.Stream for part of the work, so that the timed stream is idle
//   (seen: KernelBench, SOL-ExecBench)
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <future>
#include <vector>

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

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    // A leaked future never blocks in its destructor.
    static auto* launched = new std::vector<std::future<void>>;
    const int64_t half = R / 2;
    launched->push_back(std::async(std::launch::async, softmax_rows, x, y, half, R, C));
    softmax_rows(x, y, 0, half, C);
}
