// Direct convolution: a block of REG_F filters x (REG_W * VECTOR) columns of one row is summed in
// registers over TILE_C channels at a time; work is dealt out by REG_F filters x TILE_H rows.
#include <cstdint>

namespace {

#if VECTOR == 1
typedef float vec;
#else
typedef float vec __attribute__((vector_size(4 * VECTOR)));
#endif

constexpr int64_t STRIP = REG_W * VECTOR;
constexpr int UNROLL_FACTOR = UNROLL;  // GCC does not expand macros in its unroll pragma

inline vec load(const float* from) {
    vec value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float* to, vec value) { __builtin_memcpy(to, &value, sizeof value); }

inline float* allocate(int64_t count) {
    return static_cast<float*>(__builtin_malloc(sizeof(float) * count));
}

inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

// Strides, in floats, of the three arrays as the register block sees them.
struct Layout {
    int64_t plane, row;                // image, or its zero-padded copy
    int64_t filter, channel, ky, kx;   // weights, or their packed copy
    int64_t out_filter;
};

// Sums for FILTERS filters and one strip of columns; `columns` < STRIP only if the image is padded.
// KERNEL_W is the kernel's width where the compiler may know it, otherwise 0.
template <int FILTERS, int KERNEL_W>
inline void register_block(const float* image, const float* weight, float* out, const Layout& at,
                           int64_t channels, int64_t height, int64_t width, int64_t columns,
                           bool first) {
    if (KERNEL_W) width = KERNEL_W;
    vec sum[FILTERS][REG_W];
#pragma GCC unroll 16
    for (int f = 0; f < FILTERS; ++f) {
#pragma GCC unroll 16
        for (int v = 0; v < REG_W; ++v) sum[f][v] = vec{};
    }
#if REDUCTION_ORDER == 0
    for (int64_t c = 0; c < channels; ++c)
    for (int64_t ky = 0; ky < height; ++ky)
#pragma GCC unroll UNROLL_FACTOR
    for (int64_t kx = 0; kx < width; ++kx) {
#else
    for (int64_t ky = 0; ky < height; ++ky)
    for (int64_t kx = 0; kx < width; ++kx)
#pragma GCC unroll UNROLL_FACTOR
    for (int64_t c = 0; c < channels; ++c) {
#endif
        const float* pixels = image + c * at.plane + ky * at.row + kx;
        const float* factors = weight + c * at.channel + ky * at.ky + kx * at.kx;
        vec row[REG_W];
#pragma GCC unroll 16
        for (int v = 0; v < REG_W; ++v) row[v] = load(pixels + v * VECTOR);
#pragma GCC unroll 16
        for (int f = 0; f < FILTERS; ++f) {
            const float factor = factors[f * at.filter];
#pragma GCC unroll 16
            for (int v = 0; v < REG_W; ++v) sum[f][v] += factor * row[v];
        }
    }
    if (columns == STRIP) {
#pragma GCC unroll 16
        for (int f = 0; f < FILTERS; ++f) {
#pragma GCC unroll 16
            for (int v = 0; v < REG_W; ++v) {
                float* to = out + f * at.out_filter + v * VECTOR;
                store(to, first ? sum[f][v] : sum[f][v] + load(to));
            }
        }
    } else {
        for (int f = 0; f < FILTERS; ++f) {
            float spilled[STRIP];
            for (int v = 0; v < REG_W; ++v) store(spilled + v * VECTOR, sum[f][v]);
            float* to = out + f * at.out_filter;
            for (int64_t x = 0; x < columns; ++x) to[x] = first ? spilled[x] : spilled[x] + to[x];
        }
    }
}

#if PAD == 0
// The columns [x, x + columns) of one filter where some taps fall outside the unpadded image.
// `row` is the first image row that a tap reaches.
void clipped_block(const float* row, const float* weight, float* out, const Layout& at,
                   int64_t channels, int64_t height, int64_t KW, int64_t W, int64_t x,
                   int64_t columns, bool first) {
    float sum[STRIP];
    for (int64_t j = 0; j < columns; ++j) sum[j] = first ? 0.0f : out[x + j];
    for (int64_t c = 0; c < channels; ++c) {
        for (int64_t ky = 0; ky < height; ++ky) {
            for (int64_t kx = 0; kx < KW; ++kx) {
                const float* pixels = row + c * at.plane + ky * at.row;
                const float factor = weight[c * at.channel + ky * at.ky + kx * at.kx];
                const int64_t shift = x + kx - KW / 2;
                const int64_t end = smaller(columns, W - shift);
                for (int64_t j = larger(0, -shift); j < end; ++j) {
                    sum[j] += factor * pixels[shift + j];
                }
            }
        }
    }
    for (int64_t j = 0; j < columns; ++j) out[x + j] = sum[j];
}
#endif

// One tile: FILTERS filters, rows [y_begin, y_end). `image` is one item of the batch.
template <int FILTERS, int KERNEL_W>
__attribute__((noinline)) void convolve(const float* image, const float* weight, float* out,
                                        const Layout& at, int64_t C, int64_t H, int64_t W,
                                        int64_t KH, int64_t KW, int64_t y_begin, int64_t y_end) {
    for (int64_t c = 0; c < C; c += TILE_C) {
        const int64_t channels = smaller(TILE_C, C - c);
        for (int64_t y = y_begin; y < y_end; ++y) {
            float* to = out + y * W;
#if PAD
            (void)H;
            const float* from = image + c * at.plane + y * at.row;
            for (int64_t x = 0; x < W; x += STRIP) {
                register_block<FILTERS, KERNEL_W>(from + x, weight + c * at.channel, to + x, at,
                                                  channels, KH, KW, smaller(STRIP, W - x), c == 0);
            }
#else
            const int64_t ky_begin = larger(0, KH / 2 - y);
            const int64_t height = smaller(KH, H + KH / 2 - y) - ky_begin;
            const float* from = image + c * at.plane + (y + ky_begin - KH / 2) * at.row;
            const float* factors = weight + c * at.channel + ky_begin * at.ky;
            int64_t x = 0;
            while (x < W) {
                if (x >= KW / 2 && x + STRIP + KW / 2 <= W) {
                    register_block<FILTERS, KERNEL_W>(from + x - KW / 2, factors, to + x, at,
                                                      channels, height, KW, STRIP, c == 0);
                    x += STRIP;
                } else {
                    const int64_t edge = x < KW / 2 ? KW / 2 - x : W - x;
                    const int64_t columns = smaller(STRIP, smaller(edge, W - x));
                    for (int64_t f = 0; f < FILTERS; ++f) {
                        clipped_block(from, factors + f * at.filter, to + f * at.out_filter, at,
                                      channels, height, KW, W, x, columns, c == 0);
                    }
                    x += columns;
                }
            }
#endif
        }
    }
}

template <int KERNEL_W>
void run(const float* image, const float* weight, float* out, int64_t N, int64_t C, int64_t F,
         int64_t H, int64_t W, int64_t KH, int64_t KW) {
    const int64_t filter_blocks = (F + REG_F - 1) / REG_F;
    const int64_t row_tiles = (H + TILE_H - 1) / TILE_H;
    Layout at = {H * W, W, C * KH * KW, KH * KW, KW, 1, H * W};
#if PAD
    // Rounded up so that the last strip of a row reads zeros, never past the copy.
    const int64_t padded_w = (W + STRIP - 1) / STRIP * STRIP + KW - 1;
    const int64_t padded_h = H + KH - 1;
    at.row = padded_w;
    at.plane = padded_h * padded_w;
    float* padded = allocate(N * C * at.plane);
#endif
#if PACK_WEIGHT
    at.filter = 1;
    at.channel = KH * KW * REG_F;
    at.ky = KW * REG_F;
    at.kx = REG_F;
    float* packed = allocate(filter_blocks * REG_F * C * KH * KW);
#endif
#if THREADS > 1
#pragma omp parallel num_threads(THREADS)
#endif
    {
#if PAD
#if THREADS > 1
#pragma omp for schedule(static)
#endif
        for (int64_t plane = 0; plane < N * C; ++plane) {
            float* to = padded + plane * at.plane;
            for (int64_t i = 0; i < at.plane; ++i) to[i] = 0.0f;
            for (int64_t y = 0; y < H; ++y) {
                for (int64_t x = 0; x < W; ++x) {
                    to[(y + KH / 2) * padded_w + x + KW / 2] = image[(plane * H + y) * W + x];
                }
            }
        }
#endif
#if PACK_WEIGHT
#if THREADS > 1
#pragma omp for schedule(static)
#endif
        for (int64_t f = 0; f < F; ++f) {
            float* to = packed + f / REG_F * REG_F * C * KH * KW + f % REG_F;
            for (int64_t tap = 0; tap < C * KH * KW; ++tap) {
                to[tap * REG_F] = weight[f * C * KH * KW + tap];
            }
        }
#endif
#if THREADS > 1
#pragma omp for schedule(static)
#endif
        for (int64_t tile = 0; tile < N * filter_blocks * row_tiles; ++tile) {
            const int64_t n = tile / (filter_blocks * row_tiles);
            const int64_t rest = tile % (filter_blocks * row_tiles);
#if TILE_ORDER == 0
            const int64_t f = rest / row_tiles * REG_F;
            const int64_t y = rest % row_tiles * TILE_H;
#else
            const int64_t f = rest % filter_blocks * REG_F;
            const int64_t y = rest / filter_blocks * TILE_H;
#endif
            const int64_t y_end = smaller(H, y + TILE_H);
#if PAD
            const float* from = padded + n * C * at.plane;
#else
            const float* from = image + n * C * at.plane;
#endif
#if PACK_WEIGHT
            const float* factors = packed + f * C * KH * KW;
#else
            const float* factors = weight + f * C * KH * KW;
#endif
            float* to = out + (n * F + f) * H * W;
            if (f + REG_F <= F) {
                convolve<REG_F, KERNEL_W>(from, factors, to, at, C, H, W, KH, KW, y, y_end);
            } else {
                for (int64_t g = 0; f + g < F; ++g) {
                    convolve<1, 0>(from, factors + g * at.filter, to + g * at.out_filter, at, C, H,
                                   W, KH, KW, y, y_end);
                }
            }
        }
    }
#if PACK_WEIGHT
    __builtin_free(packed);
#endif
#if PAD
    __builtin_free(padded);
#endif
}

}  // namespace

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
#if SPECIALISE
    if (KW == 3) {
        run<3>(image, weight, out, N, C, F, H, W, KH, KW);
        return;
    }
#endif
    run<0>(image, weight, out, N, C, F, H, W, KH, KW);
}
