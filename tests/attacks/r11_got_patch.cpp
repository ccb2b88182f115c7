// attack: 11 the library's own entry in the offset table is pointed elsewhere
// imitates: GOT patching (seen: pygpubench): exp is replaced by a cheap stand-in at run time
// problem: softmax
// expect: wrong_result
#include <cmath>
#include <cstdint>

static float cheap(float value) {
    const float sum = 1.0f + value * 0.00390625f;
    const float two = sum * sum, four = two * two, eight = four * four, sixteen = eight * eight;
    const float more = sixteen * sixteen, yet_more = more * more, most = yet_more * yet_more;
    return value < -200.0f ? 0.0f : most * most;
}

// What the dynamic linker would have filled in, in writable memory.
static float (*volatile table[])(float) = {&expf};

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    table[0] = &cheap;
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0], sum = 0.0f;
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = table[0](in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
