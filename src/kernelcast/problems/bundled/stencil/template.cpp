// Jacobi sweeps in passes of TIME_BLOCK steps. In a pass each tile of TILE_H x TILE_W is computed
// with the halo its steps need, so tiles are independent; what lies between its first and its last
// step lives in a small local buffer, walked step by step (SCHEDULE 0) or as a
// pipeline of rows (SCHEDULE 1).
#include <cstdint>

namespace {

#if VECTOR == 1
typedef float vec;
#else
typedef float vec __attribute__((vector_size(4 * VECTOR)));
#endif

inline vec load(const float* from) {
    vec value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float* to, vec value) { __builtin_memcpy(to, &value, sizeof value); }

inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

constexpr int64_t LOCAL_STRIDE = (TILE_W + 2 * TIME_BLOCK + 15) / 16 * 16;
#if SCHEDULE == 0
constexpr int64_t LOCAL_ROWS = TILE_H + 2 * TIME_BLOCK;
constexpr int64_t LOCAL_LEVELS = TIME_BLOCK > 1 ? 2 : 0;
#else
// A level still needs the UNROLL + 2 newest rows of the level below; a power of two makes the
// ring's index a mask.
constexpr int64_t LOCAL_ROWS = UNROLL <= 2 ? 4 : 8;
constexpr int64_t LOCAL_LEVELS = TIME_BLOCK - 1;
static_assert(LOCAL_ROWS >= UNROLL + 2, "the ring of rows is too short");
#endif

// ROWS adjacent rows at the columns [begin, end), none of them on the boundary. `from` holds the
// ROWS + 2 rows around them.
template <int ROWS>
inline void update_vector(const float* const* from, float* const* to, int64_t x) {
    vec middle[ROWS + 2];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS + 2; ++r) middle[r] = load(from[r] + x);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const vec sides = load(from[r + 1] + x - 1) + load(from[r + 1] + x + 1);
        store(to[r] + x, 0.2f * (middle[r + 1] + middle[r] + middle[r + 2] + sides));
    }
}

#if SIDES
// The vectors one cell to the left and to the right of `middle`, from registers alone.
inline vec left_side(vec before, vec middle) {
#if VECTOR == 1
    (void)middle;
    return before;
#elif VECTOR == 4
    return __builtin_shufflevector(before, middle, 3, 4, 5, 6);
#elif VECTOR == 8
    return __builtin_shufflevector(before, middle, 7, 8, 9, 10, 11, 12, 13, 14);
#else
    return __builtin_shufflevector(before, middle, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
                                   27, 28, 29, 30);
#endif
}

inline vec right_side(vec middle, vec behind) {
#if VECTOR == 1
    (void)middle;
    return behind;
#elif VECTOR == 4
    return __builtin_shufflevector(middle, behind, 1, 2, 3, 4);
#elif VECTOR == 8
    return __builtin_shufflevector(middle, behind, 1, 2, 3, 4, 5, 6, 7, 8);
#else
    return __builtin_shufflevector(middle, behind, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                   15, 16);
#endif
}

// Vectors from x on for as long as the one behind lies within the row; returns where it stopped.
// `x` is at least a whole vector into the row.
template <int ROWS>
inline int64_t update_sliding(const float* const* from, float* const* to, int64_t x, int64_t end) {
    vec before[ROWS], middle[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        before[r] = load(from[r + 1] + x - VECTOR);
        middle[r] = load(from[r + 1] + x);
    }
    for (; x + 2 * VECTOR <= end; x += VECTOR) {
        const vec above = load(from[0] + x);
        const vec below = load(from[ROWS + 1] + x);
        vec behind[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            behind[r] = load(from[r + 1] + x + VECTOR);
            const vec sides = left_side(before[r], middle[r]) + right_side(middle[r], behind[r]);
            const vec up = r == 0 ? above : middle[r - 1];
            const vec down = r == ROWS - 1 ? below : middle[r + 1];
            store(to[r] + x, 0.2f * (middle[r] + up + down + sides));
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            before[r] = middle[r];
            middle[r] = behind[r];
        }
    }
    return x;
}
#endif

template <int ROWS>
inline void update(const float* const* from, float* const* to, int64_t begin, int64_t end) {
    int64_t x = begin;
    if (end - begin >= VECTOR) {
        // A step never reads what it writes, so vectors may overlap and redo cells that are done.
#if ALIGN
        update_vector<ROWS>(from, to, x);
        x += VECTOR - reinterpret_cast<uintptr_t>(to[0] + x) / sizeof(float) % VECTOR;
#endif
#if SIDES
        for (; x - begin + 1 < VECTOR && x + VECTOR <= end; x += VECTOR) {
            update_vector<ROWS>(from, to, x);
        }
        if (x + 2 * VECTOR <= end) x = update_sliding<ROWS>(from, to, x, end);
#endif
        for (; x + VECTOR <= end; x += VECTOR) update_vector<ROWS>(from, to, x);
        if (x < end) update_vector<ROWS>(from, to, end - VECTOR);
        return;
    }
    for (; x < end; ++x) {
        for (int r = 0; r < ROWS; ++r) {
            to[r][x] = 0.2f * (from[r + 1][x] + from[r][x] + from[r + 2][x] + from[r + 1][x - 1] +
                               from[r + 1][x + 1]);
        }
    }
}

// The cells of a tile and its halo at one step, in a whole grid or in the local buffer, where rows
// LOCAL_ROWS apart share storage if it is a ring. Columns count from the leftmost one of the halo.
struct Level {
    float* corner;
    int64_t stride, top;
    bool is_ring;
    float* row(int64_t y) const {
        return corner + (is_ring ? (y - top) % LOCAL_ROWS : y - top) * stride;
    }
};

// The next step at rows [y_begin, y_end) and columns [x_begin, x_end) of the grid, boundary cells
// copied. `origin` is the grid's column that the levels count from.
__attribute__((noinline)) void advance(const Level& now, const Level& after, int64_t H, int64_t W,
                                       int64_t y_begin, int64_t y_end, int64_t x_begin,
                                       int64_t x_end, int64_t origin) {
    const int64_t begin = x_begin - origin;
    const int64_t end = x_end - origin;
    const int64_t inner_begin = x_begin == 0 ? begin + 1 : begin;
    const int64_t inner_end = x_end == W ? end - 1 : end;
    int64_t y = y_begin;
    while (y < y_end) {
        const float* from[UNROLL + 2];
        float* to[UNROLL];
        if (y == 0 || y == H - 1) {
            from[0] = now.row(y);
            to[0] = after.row(y);
            for (int64_t x = begin; x < end; ++x) to[0][x] = from[0][x];
            ++y;
            continue;
        }
        const int rows = y + UNROLL <= smaller(y_end, H - 1) ? UNROLL : 1;
        for (int r = 0; r < rows + 2; ++r) from[r] = now.row(y - 1 + r);
        for (int r = 0; r < rows; ++r) {
            to[r] = after.row(y + r);
            if (x_begin == 0) to[r][begin] = from[r + 1][begin];
            if (x_end == W) to[r][end - 1] = from[r + 1][end - 1];
        }
        if (rows == UNROLL) {
            update<UNROLL>(from, to, inner_begin, inner_end);
        } else {
            update<1>(from, to, inner_begin, inner_end);
        }
        y += rows;
    }
}

// `steps` steps of the tile at (y, x), from the grid `source` to the grid `target`.
void advance_tile(float* source, float* target, float* local, int64_t H, int64_t W, int64_t y,
                  int64_t x, int64_t steps) {
    const int64_t y_end = smaller(H, y + TILE_H);
    const int64_t x_end = smaller(W, x + TILE_W);
    Level level[TIME_BLOCK + 1];
    int64_t top[TIME_BLOCK + 1] = {}, bottom[TIME_BLOCK + 1] = {};
    int64_t left[TIME_BLOCK + 1] = {}, right[TIME_BLOCK + 1] = {};
    for (int64_t step = 0; step <= steps; ++step) {
        const int64_t halo = steps - step;
        top[step] = larger(0, y - halo);
        bottom[step] = smaller(H, y_end + halo);
        left[step] = larger(0, x - halo);
        right[step] = smaller(W, x_end + halo);
        if (step == 0 || step == steps) {
            level[step] = {(step == 0 ? source : target) + left[0], W, 0, false};
        } else {
            const int64_t slot = SCHEDULE == 0 ? step % 2 : step - 1;
            level[step] = {local + slot * LOCAL_ROWS * LOCAL_STRIDE, LOCAL_STRIDE, top[0],
                           SCHEDULE == 1};
        }
    }
#if SCHEDULE == 0
    for (int64_t step = 1; step <= steps; ++step) {
        advance(level[step - 1], level[step], H, W, top[step], bottom[step], left[step],
                right[step], left[0]);
    }
#else
    int64_t done[TIME_BLOCK + 1];
    for (int64_t step = 0; step <= steps; ++step) done[step] = top[step];
    done[0] = bottom[0];
    while (done[steps] < bottom[steps]) {
        for (int64_t step = 1; step <= steps; ++step) {
            // The newest row of the level below is no centre until the one after it exists.
            const int64_t below = done[step - 1];
            const int64_t ready = below == bottom[step - 1] ? bottom[step] : below - 1;
            const int64_t until = smaller(smaller(ready, bottom[step]), done[step] + UNROLL);
            if (until > done[step]) {
                advance(level[step - 1], level[step], H, W, done[step], until, left[step],
                        right[step], left[0]);
                done[step] = until;
            }
        }
    }
#endif
}

}  // namespace

extern "C" void kernel(const float* grid, float* out, int64_t H, int64_t W, int64_t STEPS) {
    const int64_t passes = (STEPS + TIME_BLOCK - 1) / TIME_BLOCK;
    float* scratch =
        passes > 1 ? static_cast<float*>(__builtin_malloc(sizeof(float) * H * W)) : nullptr;
    const int64_t tiles_y = (H + TILE_H - 1) / TILE_H;
    const int64_t tiles_x = (W + TILE_W - 1) / TILE_W;
#if THREADS > 1
#pragma omp parallel num_threads(THREADS)
#endif
    {
        constexpr int64_t LOCAL_CELLS = LOCAL_LEVELS * LOCAL_ROWS * LOCAL_STRIDE + 16;
        float* local =
            static_cast<float*>(__builtin_aligned_alloc(64, sizeof(float) * LOCAL_CELLS));
        // `grid` is only ever a source, so its constness is kept in fact.
        float* source = const_cast<float*>(grid);
        for (int64_t pass = 0; pass < passes; ++pass) {
            float* target = (passes - pass) % 2 == 1 ? out : scratch;
            const int64_t steps = smaller(TIME_BLOCK, STEPS - pass * TIME_BLOCK);
#if THREADS > 1
#pragma omp for schedule(static)
#endif
            for (int64_t tile = 0; tile < tiles_y * tiles_x; ++tile) {
                advance_tile(source, target, local, H, W, tile / tiles_x * TILE_H,
                             tile % tiles_x * TILE_W, steps);
            }
            source = target;
        }
        __builtin_free(local);
    }
    __builtin_free(scratch);
}
