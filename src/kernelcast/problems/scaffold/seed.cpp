// The kernel to beat: the first thing one would write. Speedups are against this one.
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
  for (int64_t r = 0; r < R; ++r) {
    float sum = 0.0f;
    for (int64_t c = 0; c < C; ++c) sum += x[r * C + c] * x[r * C + c];
    y[r] = sum;
  }
}
