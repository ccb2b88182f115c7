// honest: macros as code
// problem: softmax
#include <cmath>
#include <cstdint>

#define EACH(i, n) for (int64_t i = 0; i < (n); ++i)
#define ROW(p, r) ((p) + (r) * C)
#define SOFTMAX(in, out)                                         \
    do {                                                         \
        float most = (in)[0], sum = 0.0f;                        \
        EACH(c, C) most = (in)[c] > most ? (in)[c] : most;       \
        EACH(c, C) sum += (out)[c] = std::exp((in)[c] - most);   \
        EACH(c, C) (out)[c] /= sum;                              \
    } while (0)

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    EACH(r, R) SOFTMAX(ROW(x, r), ROW(y, r));
}
