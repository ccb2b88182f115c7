// Governed by macros; kernelcast writes one #define for each parameter of template.toml above it.
#include <cstdint>

typedef float vec __attribute__((vector_size(4 * WIDTH), aligned(4)));

static inline float row(const float* x, int64_t C) {
  vec parts[CHAINS] = {};
  int64_t c = 0;
  for (; c + WIDTH * CHAINS <= C; c += WIDTH * CHAINS) {
#pragma GCC unroll 16
    for (int k = 0; k < CHAINS; ++k) {
      const vec v = *reinterpret_cast<const vec*>(x + c + k * WIDTH);
      parts[k] += v * v;
    }
  }
  float sum = 0.0f;
  for (int k = 0; k < CHAINS; ++k)
    for (int w = 0; w < WIDTH; ++w) sum += parts[k][w];
  for (; c < C; ++c) sum += x[c] * x[c];
  return sum;
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
#pragma omp parallel for num_threads(THREADS) schedule(static) if (THREADS > 1)
  for (int64_t block = 0; block < R; block += ROWS) {
    const int64_t end = block + ROWS < R ? block + ROWS : R;
    for (int64_t r = block; r < end; ++r) {
      if (PREFETCH > 0 && r + 1 < end)
        for (int64_t c = 0; c < C; c += PREFETCH) __builtin_prefetch(x + (r + 1) * C + c);
      y[r] = row(x + r * C, C);
    }
  }
}
