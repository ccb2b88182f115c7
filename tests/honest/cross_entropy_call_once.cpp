// honest: a work area made under std::call_once, with a deleter of its own
// problem: cross_entropy
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>

struct Release {
    void operator()(double* area) const { std::free(area); }
};
static std::once_flag made;
static std::unique_ptr<double, Release> area;
static constexpr int64_t CHUNK = 4096;

extern "C" void kernel(const float* logits, const int64_t* labels, float* loss, float* gradient,
                       int64_t R, int64_t C) {
    std::call_once(made, [] { area.reset(static_cast<double*>(std::malloc(sizeof(double) * CHUNK))); });
    double* exponentials = area.get();
    for (int64_t row = 0; row < R; ++row) {
        const float* in = logits + row * C;
        float* out = gradient + row * C;
        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        double sum = 0.0;
        for (int64_t start = 0; start < C; start += CHUNK) {
            const int64_t count = C - start < CHUNK ? C - start : CHUNK;
            for (int64_t i = 0; i < count; ++i) exponentials[i] = std::exp(double(in[start + i]) - largest);
            for (int64_t i = 0; i < count; ++i) sum += exponentials[i];
            for (int64_t i = 0; i < count; ++i) out[start + i] = static_cast<float>(exponentials[i]);
        }
        loss[row] = static_cast<float>(std::log(sum) - (in[labels[row]] - largest));
        for (int64_t col = 0; col < C; ++col) out[col] = static_cast<float>(out[col] / sum);
        out[labels[row]] -= 1.0f;
    }
}
