// honest: the largest of a row by comparing floats as whole numbers
// problem: softmax
#include <cmath>
#include <cstdint>
#include <cstring>

// Order of floats as order of signed integers: negative ones have all other bits turned round.
static int32_t ordered(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        int32_t most = INT32_MIN;
        for (int64_t col = 0; col < C; ++col) {
            const int32_t key = ordered(in[col]);
            most = key > most ? key : most;
        }
        most ^= most >> 31 & 0x7fffffff;
        float largest, sum = 0.0f;
        std::memcpy(&largest, &most, sizeof largest);
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
