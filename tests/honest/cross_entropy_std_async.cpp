// honest: std::async with futures, each with a part of the rows
// problem: cross_entropy
#include <cmath>
#include <cstdint>
#include <future>
#include <vector>

static double row_loss(const float* in, float* out, int64_t label, int64_t C) {
    float largest = in[0], sum = 0.0f;
    for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
    for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
    for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    out[label] -= 1.0f;
    return std::log(sum) - (in[label] - largest);
}

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    std::vector<std::future<void>> parts;
    for (int part = 0; part < 3; ++part) {
        parts.push_back(std::async(std::launch::async, [=] {
            for (int64_t row = part; row < R; row += 3) {
                loss[row] = row_loss(logits + row * C, gradient + row * C, labels[row], C);
            }
        }));
    }
    for (auto& part : parts) part.get();
}
