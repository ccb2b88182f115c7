// Blocked matrix product: tiles of TILE_M x TILE_N x TILE_K walked in LOOP_ORDER, and inside each
// a block of REG_M x (REG_N * VECTOR) sums in registers. PACK copies tiles into contiguous strips.
#include <cstdint>

namespace {

#if VECTOR == 1
typedef float vec;
#else
typedef float vec __attribute__((vector_size(4 * VECTOR)));
#endif

constexpr int64_t STRIP = REG_N * VECTOR;
constexpr int UNROLL_FACTOR = UNROLL;  // GCC does not expand macros in its unroll pragma
constexpr bool PACK_B = PACK >= 1;
constexpr bool PACK_A = PACK >= 2;

// Axes from the outermost tile loop to the innermost: 0 is M, 1 is N, 2 is K.
constexpr int ORDERS[6][3] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
constexpr const int* ORDER = ORDERS[LOOP_ORDER];

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

template <int ROWS>
inline void register_block(const float* a, int64_t a_row, int64_t a_step, const float* b,
                           int64_t b_step, float* c, int64_t c_row, int64_t depth, bool first) {
    vec sum[ROWS][REG_N];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < REG_N; ++v) {
            sum[r][v] = first ? vec{} : load(c + r * c_row + v * VECTOR);
        }
    }
#pragma GCC unroll UNROLL_FACTOR
    for (int64_t k = 0; k < depth; ++k) {
        vec row[REG_N];
#pragma GCC unroll 16
        for (int v = 0; v < REG_N; ++v) row[v] = load(b + k * b_step + v * VECTOR);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const float factor = a[r * a_row + k * a_step];
#pragma GCC unroll 16
            for (int v = 0; v < REG_N; ++v) sum[r][v] += factor * row[v];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < REG_N; ++v) store(c + r * c_row + v * VECTOR, sum[r][v]);
    }
}

// Fewer columns than a strip: whole vectors would read past the end of a row.
void narrow_block(const float* a, int64_t a_row, const float* b, int64_t b_step, float* c,
                  int64_t c_row, int64_t rows, int64_t columns, int64_t depth, bool first) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum[STRIP];
        for (int64_t j = 0; j < columns; ++j) sum[j] = first ? 0.0f : c[r * c_row + j];
        for (int64_t k = 0; k < depth; ++k) {
            const float factor = a[r * a_row + k];
            for (int64_t j = 0; j < columns; ++j) sum[j] += factor * b[k * b_step + j];
        }
        for (int64_t j = 0; j < columns; ++j) c[r * c_row + j] = sum[j];
    }
}

void pack_rows(const float* a, int64_t a_row, int64_t rows, int64_t depth, float* packed) {
    for (int64_t r = 0; r < rows; ++r) {
        float* strip = packed + r / REG_M * REG_M * TILE_K + r % REG_M;
        for (int64_t k = 0; k < depth; ++k) strip[k * REG_M] = a[r * a_row + k];
    }
}

void pack_columns(const float* b, int64_t b_row, int64_t columns, int64_t depth, float* packed) {
    for (int64_t j = 0; j + STRIP <= columns; j += STRIP) {
        for (int64_t k = 0; k < depth; ++k) {
            for (int64_t v = 0; v < REG_N; ++v) {
                store(packed + j * TILE_K + k * STRIP + v * VECTOR,
                      load(b + k * b_row + j + v * VECTOR));
            }
        }
    }
}

// The rows [begin[0], end[0]) and columns [begin[1], end[1]) of C, over the whole depth.
void multiply(const float* a, const float* b, float* c, int64_t N, int64_t K, const int64_t* begin,
              const int64_t* end) {
    constexpr int64_t TILE[3] = {TILE_M, TILE_N, TILE_K};
    float* packed_a = PACK_A ? allocate(TILE_M * TILE_K) : nullptr;
    float* packed_b = PACK_B ? allocate(TILE_N * TILE_K) : nullptr;
    int64_t a_at[2] = {-1, -1};
    int64_t b_at[2] = {-1, -1};
    constexpr int X = ORDER[0], Y = ORDER[1], Z = ORDER[2];
    int64_t at[3];
    for (at[X] = begin[X]; at[X] < end[X]; at[X] += TILE[X])
    for (at[Y] = begin[Y]; at[Y] < end[Y]; at[Y] += TILE[Y])
    for (at[Z] = begin[Z]; at[Z] < end[Z]; at[Z] += TILE[Z]) {
        const int64_t m = at[0], n = at[1], k = at[2];
        const int64_t rows = smaller(TILE_M, end[0] - m);
        const int64_t columns = smaller(TILE_N, end[1] - n);
        const int64_t depth = smaller(TILE_K, end[2] - k);
        const float* a_tile = a + m * K + k;
        const float* b_tile = b + k * N + n;
        float* c_tile = c + m * N + n;
        if (PACK_A && (a_at[0] != m || a_at[1] != k)) {
            pack_rows(a_tile, K, rows, depth, packed_a);
            a_at[0] = m;
            a_at[1] = k;
        }
        if (PACK_B && (b_at[0] != k || b_at[1] != n)) {
            pack_columns(b_tile, N, columns, depth, packed_b);
            b_at[0] = k;
            b_at[1] = n;
        }
        int64_t j = 0;
        for (; j + STRIP <= columns; j += STRIP) {
            const float* b_strip = PACK_B ? packed_b + j * TILE_K : b_tile + j;
            const int64_t b_step = PACK_B ? STRIP : N;
            int64_t i = 0;
            for (; i + REG_M <= rows; i += REG_M) {
                const float* a_strip = PACK_A ? packed_a + i * TILE_K : a_tile + i * K;
                register_block<REG_M>(a_strip, PACK_A ? 1 : K, PACK_A ? REG_M : 1, b_strip, b_step,
                                      c_tile + i * N + j, N, depth, k == 0);
            }
            for (; i < rows; ++i) {
                register_block<1>(a_tile + i * K, K, 1, b_strip, b_step, c_tile + i * N + j, N,
                                  depth, k == 0);
            }
        }
        if (j < columns) {
            narrow_block(a_tile, K, b_tile + j, N, c_tile + j, N, rows, columns - j, depth, k == 0);
        }
    }
    __builtin_free(packed_b);
    __builtin_free(packed_a);
}

}  // namespace

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
#if THREADS > 1
    // Each thread owns a share of C: rows or columns, whichever the tile loops walk first.
    constexpr int SHARED = ORDER[0] == 2 ? ORDER[1] : ORDER[0];
    constexpr int64_t GRAIN = SHARED == 0 ? REG_M : STRIP;
    const int64_t extent = SHARED == 0 ? M : N;
    const int64_t share = ((extent + THREADS - 1) / THREADS + GRAIN - 1) / GRAIN * GRAIN;
#pragma omp parallel for num_threads(THREADS) schedule(static)
    for (int64_t thread = 0; thread < THREADS; ++thread) {
        int64_t begin[3] = {0, 0, 0};
        int64_t end[3] = {M, N, K};
        begin[SHARED] = smaller(extent, thread * share);
        end[SHARED] = smaller(extent, (thread + 1) * share);
        multiply(a, b, c, N, K, begin, end);
    }
#else
    const int64_t begin[3] = {0, 0, 0};
    const int64_t end[3] = {M, N, K};
    multiply(a, b, c, N, K, begin, end);
#endif
}
