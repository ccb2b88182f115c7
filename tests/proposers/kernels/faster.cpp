// One pass of exponentials that vectorises: a polynomial for 2^f and the exponent by bits.
#include <cstdint>
#include <cstring>

static inline float fast_exp(float v) {
    // exp(v) = 2^n * 2^f with n whole and |f| <= 1/2; below -87 the result is 0 in single precision.
    float t = v < -87.0f ? -87.0f : v;
    t *= 1.44269504088896341f;
    float n = (t + 12582912.0f) - 12582912.0f;
    float f = t - n;
    float p = 1.5403530e-4f;
    p = p * f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

extern "C" void kernel(const float* __restrict x, float* __restrict y, int64_t R, int64_t C) {
    constexpr int64_t LANES = 16;
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        const int64_t whole = C / LANES * LANES;

        float tops[LANES];
        for (int64_t lane = 0; lane < LANES; ++lane) tops[lane] = in[0];
        for (int64_t col = 0; col < whole; col += LANES)
            for (int64_t lane = 0; lane < LANES; ++lane)
                tops[lane] = in[col + lane] > tops[lane] ? in[col + lane] : tops[lane];
        float top = tops[0];
        for (int64_t lane = 1; lane < LANES; ++lane) top = tops[lane] > top ? tops[lane] : top;
        for (int64_t col = whole; col < C; ++col) top = in[col] > top ? in[col] : top;

        float sums[LANES] = {};
        for (int64_t col = 0; col < whole; col += LANES)
            for (int64_t lane = 0; lane < LANES; ++lane) {
                const float e = fast_exp(in[col + lane] - top);
                out[col + lane] = e;
                sums[lane] += e;
            }
        float sum = 0.0f;
        for (int64_t lane = 0; lane < LANES; ++lane) sum += sums[lane];
        for (int64_t col = whole; col < C; ++col) {
            out[col] = fast_exp(in[col] - top);
            sum += out[col];
        }

        const float scale = 1.0f / sum;
        for (int64_t col = 0; col < C; ++col) out[col] *= scale;
    }
}
