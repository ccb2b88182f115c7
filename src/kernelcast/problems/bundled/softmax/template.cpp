#include <cstdint>

typedef float vec __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));

#define UNROLLED _Pragma("GCC unroll 16")
#define ROLLED _Pragma("GCC unroll 1")
#define INLINE static inline __attribute__((always_inline))
#define SHARED static __attribute__((noinline))  // keeps the code small and quick to compile

constexpr float LOWEST = -3.0e38f;

INLINE vec splat(float value) { return value - vec{}; }

INLINE vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }

INLINE void store(float* p, vec value) { *reinterpret_cast<vec*>(p) = value; }

INLINE vec load_part(const float* p, int64_t count, float fill) {
    float lanes[VECTOR];
    store(lanes, splat(fill));
    __builtin_memcpy(lanes, p, sizeof(float) * count);
    return load(lanes);
}

INLINE void store_part(float* p, vec value, int64_t count) {
    float lanes[VECTOR];
    store(lanes, value);
    __builtin_memcpy(p, lanes, sizeof(float) * count);
}

INLINE vec larger(vec a, vec b) { return a > b ? a : b; }

SHARED float horizontal_max(vec value) {
    float lanes[VECTOR];
    store(lanes, value);
    for (int width = VECTOR / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) {
            if (lanes[i + width] > lanes[i]) lanes[i] = lanes[i + width];
        }
    return lanes[0];
}

SHARED float horizontal_sum(vec value) {
    float lanes[VECTOR];
    store(lanes, value);
    for (int width = VECTOR / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

// exp(x) for x <= 0 (results below the normal range are clamped to about 1e-38).
INLINE vec exponential(vec x) {
#if EXP_DEGREE == 0
    float lanes[VECTOR];
    store(lanes, x);
    ROLLED for (int i = 0; i < VECTOR; ++i) lanes[i] = __builtin_expf(lanes[i]);
    return load(lanes);
#else
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const float round_bias = 12582912.0f;
    x = larger(x, splat(-87.0f));
    const vec biased = x * 1.44269504f + round_bias;
    const vec r = x - (biased - round_bias) * 0.693147181f;
#if EXP_DEGREE == 4
    const float c1 = 0.999966523f, c2 = 0.500031229f, c3 = 0.167881525f, c4 = 0.0415071555f;
#elif EXP_DEGREE == 5
    const float c1 = 0.999999799f, c2 = 0.499991575f, c3 = 0.166669311f, c4 = 0.0418990355f,
                c5 = 0.00834391553f;
#else
    const float c1 = 1.0f, c2 = 0.5f, c3 = 0.166665605f, c4 = 0.0416680649f,
                c5 = 0.00836593198f, c6 = 0.00138088431f;
#endif
#if EXP_SCHEME == 0  // Horner: fewest operations, longest chain
#if EXP_DEGREE == 4
    vec p = c4 * r + c3;
#elif EXP_DEGREE == 5
    vec p = (c5 * r + c4) * r + c3;
#else
    vec p = ((c6 * r + c5) * r + c4) * r + c3;
#endif
    p = ((p * r + c2) * r + c1) * r + 1.0f;
#else  // Estrin: one more multiplication, shorter chain
    const vec r2 = r * r;
#if EXP_DEGREE == 4
    const vec high = c4 * r2 + (c3 * r + c2);
#elif EXP_DEGREE == 5
    const vec high = (c5 * r + c4) * r2 + (c3 * r + c2);
#else
    const vec high = (c6 * r2 + (c5 * r + c4)) * r2 + (c3 * r + c2);
#endif
    vec p = high * r2 + (c1 * r + 1.0f);
#endif
    return (vec)((uvec)p + ((uvec)biased << 23));
#endif
}

// Raises largest[i] to the maximum of row i over n columns.
template <int ROWS>
INLINE void update_max(const float* __restrict x, int64_t stride, int64_t n, float* largest) {
    vec best[ROWS][ACCUMULATORS];
    UNROLLED for (int i = 0; i < ROWS; ++i)
        UNROLLED for (int a = 0; a < ACCUMULATORS; ++a) best[i][a] = splat(largest[i]);
    int64_t col = 0;
    for (; col + VECTOR * UNROLL <= n; col += VECTOR * UNROLL)
        UNROLLED for (int u = 0; u < UNROLL; ++u)
            UNROLLED for (int i = 0; i < ROWS; ++i) {
                vec& accumulator = best[i][u % ACCUMULATORS];
                accumulator = larger(load(x + i * stride + col + u * VECTOR), accumulator);
            }
    for (; col + VECTOR <= n; col += VECTOR)
        UNROLLED for (int i = 0; i < ROWS; ++i)
            best[i][0] = larger(load(x + i * stride + col), best[i][0]);
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        UNROLLED for (int a = 1; a < ACCUMULATORS; ++a) best[i][0] = larger(best[i][a], best[i][0]);
        largest[i] = horizontal_max(best[i][0]);
    }
    if (col < n)
        ROLLED for (int i = 0; i < ROWS; ++i)
            largest[i] = horizontal_max(load_part(x + i * stride + col, n - col, largest[i]));
}

// Adds the sum of exp(x - largest) to sum[i], and keeps the exponentials in y if STORE.
template <int ROWS, bool STORE>
INLINE void exponentiate(const float* __restrict x, float* __restrict y, int64_t stride, int64_t n,
                         const float* largest, float* sum) {
    vec total[ROWS][ACCUMULATORS], shift[ROWS];
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        shift[i] = splat(largest[i]);
        UNROLLED for (int a = 0; a < ACCUMULATORS; ++a) total[i][a] = vec{};
    }
    int64_t col = 0;
    for (; col + VECTOR * UNROLL <= n; col += VECTOR * UNROLL)
        UNROLLED for (int u = 0; u < UNROLL; ++u)
            UNROLLED for (int i = 0; i < ROWS; ++i) {
                const int64_t at = i * stride + col + u * VECTOR;
                const vec e = exponential(load(x + at) - shift[i]);
                if (STORE) store(y + at, e);
                total[i][u % ACCUMULATORS] += e;
            }
    for (; col + VECTOR <= n; col += VECTOR)
        UNROLLED for (int i = 0; i < ROWS; ++i) {
            const vec e = exponential(load(x + i * stride + col) - shift[i]);
            if (STORE) store(y + i * stride + col, e);
            total[i][0] += e;
        }
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        UNROLLED for (int a = 1; a < ACCUMULATORS; ++a) total[i][0] += total[i][a];
        sum[i] += horizontal_sum(total[i][0]);
    }
    if (col < n)
        ROLLED for (int i = 0; i < ROWS; ++i) {
            const int64_t at = i * stride + col;
            const vec e = exponential(load_part(x + at, n - col, LOWEST) - largest[i]);
            if (STORE) store_part(y + at, e, n - col);
            sum[i] += horizontal_sum(e);  // the padding adds 1e-38 a lane
        }
}

INLINE vec normalised(vec value, vec normaliser) {
#if NORMALISE == 0
    return value / normaliser;
#else
    return value * normaliser;
#endif
}

INLINE float normaliser_of(float sum) { return NORMALISE == 0 ? sum : 1.0f / sum; }

// y = exp(x - largest) / sum when EXPONENTIATE, else y = y / sum.
template <int ROWS, bool EXPONENTIATE>
INLINE void normalise(const float* __restrict x, float* __restrict y, int64_t stride, int64_t n,
                      const float* largest, const float* sum) {
    vec shift[ROWS], normaliser[ROWS];
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        shift[i] = splat(largest[i]);
        normaliser[i] = splat(normaliser_of(sum[i]));
    }
    int64_t col = 0;
    for (; col + VECTOR * UNROLL <= n; col += VECTOR * UNROLL)
        UNROLLED for (int u = 0; u < UNROLL; ++u)
            UNROLLED for (int i = 0; i < ROWS; ++i) {
                const int64_t at = i * stride + col + u * VECTOR;
                const vec e = EXPONENTIATE ? exponential(load(x + at) - shift[i]) : load(y + at);
                store(y + at, normalised(e, normaliser[i]));
            }
    for (; col + VECTOR <= n; col += VECTOR)
        UNROLLED for (int i = 0; i < ROWS; ++i) {
            const int64_t at = i * stride + col;
            const vec e = EXPONENTIATE ? exponential(load(x + at) - shift[i]) : load(y + at);
            store(y + at, normalised(e, normaliser[i]));
        }
    if (col < n)
        ROLLED for (int i = 0; i < ROWS; ++i) {
            const int64_t at = i * stride + col;
            const vec e = EXPONENTIATE ? exponential(load_part(x + at, n - col, LOWEST) - largest[i])
                                       : load_part(y + at, n - col, 0.0f);
            store_part(y + at, normalised(e, splat(normaliser_of(sum[i]))), n - col);
        }
}

// One pass over x: maximum and sum of exponentials together, rescaled once per column block.
// If STORE, the exponentials go to y relative to the maximum known at that block, which is
// kept in block_max[block * ROWS + i].
template <int ROWS, bool STORE>
INLINE void online(const float* __restrict x, float* __restrict y, int64_t n, float* largest,
                   float* sum, float* block_max) {
    for (int64_t col = 0, block = 0; col < n; col += COLUMN_BLOCK, ++block) {
        const int64_t width = n - col < COLUMN_BLOCK ? n - col : COLUMN_BLOCK;
        float before[ROWS];
        for (int i = 0; i < ROWS; ++i) before[i] = largest[i];
        update_max<ROWS>(x + col, n, width, largest);
        for (int i = 0; i < ROWS; ++i) {
            if (largest[i] > before[i]) sum[i] *= __builtin_expf(before[i] - largest[i]);
            if (STORE) block_max[block * ROWS + i] = largest[i];
        }
        exponentiate<ROWS, STORE>(x + col, y + col, n, width, largest, sum);
    }
}

// Phases over a group of rows: each phase runs over all rows of the group before the next one.
enum { FIND_MAX, SUM, FINISH };

template <int ROWS>
INLINE void run_phase(int phase, const float* x, float* y, int64_t C, float* largest, float* sum,
                      float* block_max) {
    if (phase == FIND_MAX) {
        for (int i = 0; i < ROWS; ++i) {
            largest[i] = LOWEST;
            sum[i] = 0.0f;
        }
#if STRATEGY <= 1
        update_max<ROWS>(x, C, C, largest);
#else
        online<ROWS, STRATEGY == 3>(x, y, C, largest, sum, block_max);
#endif
    } else if (phase == SUM) {
#if STRATEGY <= 1
        exponentiate<ROWS, STRATEGY == 0>(x, y, C, C, largest, sum);
#endif
    } else {
#if STRATEGY == 3
        for (int64_t col = 0, block = 0; col < C; col += COLUMN_BLOCK, ++block) {
            const int64_t width = C - col < COLUMN_BLOCK ? C - col : COLUMN_BLOCK;
            float block_sum[ROWS];
            for (int i = 0; i < ROWS; ++i) {
                const float before = block_max[block * ROWS + i];
                block_sum[i] =
                    before < largest[i] ? sum[i] * __builtin_expf(largest[i] - before) : sum[i];
            }
            normalise<ROWS, false>(x + col, y + col, C, width, largest, block_sum);
        }
#else
        normalise<ROWS, STRATEGY != 0>(x, y, C, C, largest, sum);
#endif
    }
}

static void softmax_group(const float* x, float* y, int64_t rows, int64_t C, float* block_max) {
    float largest[ROW_GROUP], sum[ROW_GROUP];
    const int64_t blocks = (C + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    for (int phase = FIND_MAX; phase <= FINISH; ++phase) {
        int64_t row = 0;
        for (; row + ROW_INTERLEAVE <= rows; row += ROW_INTERLEAVE)
            run_phase<ROW_INTERLEAVE>(phase, x + row * C, y + row * C, C, largest + row, sum + row,
                                      block_max + row * blocks);
        for (; row < rows; ++row)
            run_phase<1>(phase, x + row * C, y + row * C, C, largest + row, sum + row,
                         block_max + row * blocks);
    }
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    const int64_t blocks = (C + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    const int64_t groups = (R + ROW_GROUP - 1) / ROW_GROUP;
#if THREADS > 1
#pragma omp parallel num_threads(THREADS)
#endif
    {
        float* block_max =
            static_cast<float*>(__builtin_malloc(sizeof(float) * ROW_GROUP * blocks));
#if THREADS > 1
#pragma omp for schedule(static)
#endif
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t row = group * ROW_GROUP;
            softmax_group(x + row * C, y + row * C, R - row < ROW_GROUP ? R - row : ROW_GROUP, C,
                          block_max);
        }
        __builtin_free(block_max);
    }
}
