#include <cstdint>

typedef float vec __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));

#define UNROLLED _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))
#define SHARED static __attribute__((noinline))  // keeps the code small and quick to compile

constexpr float EPSILON = 1e-5f;

INLINE vec splat(float value) { return value - vec{}; }

INLINE vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }

INLINE void store(float* p, vec value) { *reinterpret_cast<vec*>(p) = value; }

SHARED float horizontal_sum(vec value) {
    float lanes[VECTOR];
    store(lanes, value);
    for (int width = VECTOR / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

// sum[i] = sum of (x - shift[i]) over row i, squares[i] = sum of (x - shift[i])^2; each only if
// asked for. If KEEP_SHIFTED, x - shift[i] is written to y.
template <int ROWS, bool WANT_SUM, bool WANT_SQUARES, bool KEEP_SHIFTED>
INLINE void reduce(const float* __restrict x, float* __restrict y, int64_t C, const float* shift,
                   float* sum, float* squares) {
    vec first[ROWS][ACCUMULATORS], second[ROWS][ACCUMULATORS], offset[ROWS];
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        offset[i] = splat(shift[i]);
        UNROLLED for (int a = 0; a < ACCUMULATORS; ++a) first[i][a] = second[i][a] = vec{};
    }
    int64_t col = 0;
    for (; col + VECTOR * UNROLL <= C; col += VECTOR * UNROLL)
        UNROLLED for (int u = 0; u < UNROLL; ++u)
            UNROLLED for (int i = 0; i < ROWS; ++i) {
                const int64_t at = i * C + col + u * VECTOR;
                const vec value = load(x + at) - offset[i];
                if (WANT_SUM) first[i][u % ACCUMULATORS] += value;
                if (WANT_SQUARES) second[i][u % ACCUMULATORS] += value * value;
                if (KEEP_SHIFTED) store(y + at, value);
            }
    for (; col + VECTOR <= C; col += VECTOR)
        UNROLLED for (int i = 0; i < ROWS; ++i) {
            const vec value = load(x + i * C + col) - offset[i];
            if (WANT_SUM) first[i][0] += value;
            if (WANT_SQUARES) second[i][0] += value * value;
            if (KEEP_SHIFTED) store(y + i * C + col, value);
        }
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        UNROLLED for (int a = 1; a < ACCUMULATORS; ++a) {
            first[i][0] += first[i][a];
            second[i][0] += second[i][a];
        }
        sum[i] = horizontal_sum(first[i][0]);
        squares[i] = horizontal_sum(second[i][0]);
        for (int64_t tail = col; tail < C; ++tail) {
            const float value = x[i * C + tail] - shift[i];
            sum[i] += value;
            squares[i] += value * value;
            if (KEEP_SHIFTED) y[i * C + tail] = value;
        }
    }
}

template <int ROWS>
INLINE void two_pass(const float* x, float* y, int64_t C, float* mean, float* variance) {
    float zero[ROWS] = {}, unused[ROWS];
    reduce<ROWS, true, false, false>(x, y, C, zero, mean, unused);
    for (int i = 0; i < ROWS; ++i) mean[i] /= C;
    reduce<ROWS, false, true, KEEP_CENTRED != 0>(x, y, C, mean, unused, variance);
    for (int i = 0; i < ROWS; ++i) variance[i] /= C;
}

// Sum and sum of squares together, about zero or about the row's first element.
template <int ROWS>
INLINE void one_pass(const float* x, float* y, int64_t C, float* mean, float* variance) {
    float shift[ROWS], sum[ROWS], squares[ROWS];
    for (int i = 0; i < ROWS; ++i) shift[i] = VARIANCE == 2 ? x[i * C] : 0.0f;
    reduce<ROWS, true, true, false>(x, y, C, shift, sum, squares);
    for (int i = 0; i < ROWS; ++i) {
        const float offset = sum[i] / C, second_moment = squares[i] / C;
        mean[i] = shift[i] + offset;
        variance[i] = second_moment - offset * offset;
        // Too little of the second moment left to trust the difference.
        if (variance[i] < second_moment * (1.0f / 64.0f))
            two_pass<1>(x + i * C, y, C, mean + i, variance + i);
    }
}

// Welford's update in every lane of every accumulator; the lanes are merged at the end.
template <int ROWS>
INLINE void running(const float* __restrict x, int64_t C, float* mean, float* variance) {
    vec means[ROWS][ACCUMULATORS], spreads[ROWS][ACCUMULATORS];
    UNROLLED for (int i = 0; i < ROWS; ++i)
        UNROLLED for (int a = 0; a < ACCUMULATORS; ++a) means[i][a] = spreads[i][a] = vec{};
    float count = 0.0f;
    int64_t col = 0;
    for (; col + VECTOR * UNROLL <= C; col += VECTOR * UNROLL)
        UNROLLED for (int step = 0; step < UNROLL / ACCUMULATORS; ++step) {
            count += 1.0f;
            UNROLLED for (int a = 0; a < ACCUMULATORS; ++a)
                UNROLLED for (int i = 0; i < ROWS; ++i) {
                    const int u = step * ACCUMULATORS + a;
                    const vec value = load(x + i * C + col + u * VECTOR);
                    const vec delta = value - means[i][a];
                    means[i][a] += delta / count;
                    spreads[i][a] += delta * (value - means[i][a]);
                }
        }
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        float lane_means[ACCUMULATORS * VECTOR], spread = 0.0f, sum = 0.0f;
        UNROLLED for (int a = 0; a < ACCUMULATORS; ++a) {
            store(lane_means + a * VECTOR, means[i][a]);
            sum += horizontal_sum(means[i][a]) * count;
            spread += horizontal_sum(spreads[i][a]);
        }
        for (int64_t tail = col; tail < C; ++tail) sum += x[i * C + tail];
        mean[i] = sum / C;
        for (int lane = 0; lane < ACCUMULATORS * VECTOR; ++lane)
            spread += count * (lane_means[lane] - mean[i]) * (lane_means[lane] - mean[i]);
        for (int64_t tail = col; tail < C; ++tail)
            spread += (x[i * C + tail] - mean[i]) * (x[i * C + tail] - mean[i]);
        variance[i] = spread / C;
    }
}

INLINE vec normalised(vec value, vec mean, vec scale, vec gamma, vec beta) {
#if APPLY == 2  // mean holds -mean * scale: two fused multiply-adds
    return (value * scale + mean) * gamma + beta;
#else
    const vec centred = KEEP_CENTRED ? value : value - mean;
    return (APPLY == 0 ? centred / scale : centred * scale) * gamma + beta;
#endif
}

// y = (x - mean) / deviation * gamma + beta over n columns; x - mean is in y if KEEP_CENTRED.
template <int ROWS>
INLINE void apply(const float* __restrict x, const float* __restrict gamma,
                  const float* __restrict beta, float* __restrict y, int64_t stride, int64_t n,
                  const float* mean, const float* variance) {
    const float* source = KEEP_CENTRED ? y : x;
    vec centre[ROWS], scale[ROWS];
    UNROLLED for (int i = 0; i < ROWS; ++i) {
        const float deviation = __builtin_sqrtf(variance[i] + EPSILON);
        scale[i] = splat(APPLY == 0 ? deviation : 1.0f / deviation);
        const float kept_mean = KEEP_CENTRED ? 0.0f : mean[i];
        centre[i] = APPLY == 2 ? -kept_mean * scale[i] : splat(kept_mean);
    }
    int64_t col = 0;
    for (; col + VECTOR * UNROLL <= n; col += VECTOR * UNROLL)
        UNROLLED for (int u = 0; u < UNROLL; ++u) {
            const int64_t first = col + u * VECTOR;
            const vec g = load(gamma + first), b = load(beta + first);
            UNROLLED for (int i = 0; i < ROWS; ++i)
                store(y + i * stride + first,
                      normalised(load(source + i * stride + first), centre[i], scale[i], g, b));
        }
    for (; col + VECTOR <= n; col += VECTOR) {
        const vec g = load(gamma + col), b = load(beta + col);
        UNROLLED for (int i = 0; i < ROWS; ++i)
            store(y + i * stride + col,
                  normalised(load(source + i * stride + col), centre[i], scale[i], g, b));
    }
    for (; col < n; ++col)
        UNROLLED for (int i = 0; i < ROWS; ++i)
            y[i * stride + col] = normalised(splat(source[i * stride + col]), centre[i], scale[i],
                                             splat(gamma[col]), splat(beta[col]))[0];
}

template <int ROWS>
INLINE void statistics(const float* x, float* y, int64_t C, float* mean, float* variance) {
#if VARIANCE == 0
    two_pass<ROWS>(x, y, C, mean, variance);
#elif VARIANCE == 3
    running<ROWS>(x, C, mean, variance);
#else
    one_pass<ROWS>(x, y, C, mean, variance);
#endif
}

// Statistics of all rows of the group first, then the normalisation of all of them.
static void layernorm_group(const float* x, const float* gamma, const float* beta, float* y,
                            int64_t rows, int64_t C) {
    float mean[ROW_GROUP], variance[ROW_GROUP];
    int64_t row = 0;
    for (; row + ROW_INTERLEAVE <= rows; row += ROW_INTERLEAVE)
        statistics<ROW_INTERLEAVE>(x + row * C, y + row * C, C, mean + row, variance + row);
    for (; row < rows; ++row) statistics<1>(x + row * C, y + row * C, C, mean + row, variance + row);

    const int64_t block = COLUMN_BLOCK == 0 ? C : COLUMN_BLOCK;
    for (int64_t col = 0; col < C; col += block) {
        const int64_t width = C - col < block ? C - col : block;
        for (row = 0; row + ROW_INTERLEAVE <= rows; row += ROW_INTERLEAVE)
            apply<ROW_INTERLEAVE>(x + row * C + col, gamma + col, beta + col,
                                  y + row * C + col, C, width, mean + row, variance + row);
        for (; row < rows; ++row)
            apply<1>(x + row * C + col, gamma + col, beta + col, y + row * C + col, C, width,
                     mean + row, variance + row);
    }
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    const int64_t groups = (R + ROW_GROUP - 1) / ROW_GROUP;
#if THREADS > 1
#pragma omp parallel for schedule(static) num_threads(THREADS)
#endif
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t row = group * ROW_GROUP;
        layernorm_group(x + row * C, gamma, beta, y + row * C,
                        R - row < ROW_GROUP ? R - row : ROW_GROUP, C);
    }
}
