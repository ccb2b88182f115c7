// honest: a thread_local vector that only grows, in each OpenMP thread its own
// problem: softmax
#include <cmath>
#include <cstdint>
#include <vector>

static thread_local std::vector<float> row_of_mine;

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
#pragma omp parallel for num_threads(2) schedule(static, 4)
    for (int64_t row = 0; row < R; ++row) {
        if (static_cast<int64_t>(row_of_mine.size()) < C) row_of_mine.resize(C);
        float* values = row_of_mine.data();
        float largest = x[row * C], sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) {
            values[col] = x[row * C + col];
            if (values[col] > largest) largest = values[col];
        }
        for (int64_t col = 0; col < C; ++col) sum += values[col] = std::exp(values[col] - largest);
        for (int64_t col = 0; col < C; ++col) y[row * C + col] = values[col] / sum;
    }
}
