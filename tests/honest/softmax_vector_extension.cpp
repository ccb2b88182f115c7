// honest: the compiler's vector extension
// problem: softmax
#include <cmath>
#include <cstdint>
#include <cstring>

typedef float Vector __attribute__((vector_size(32)));

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        float largest = in[0];
        for (int64_t col = 1; col < C; ++col) largest = in[col] > largest ? in[col] : largest;
        float sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        int64_t col = 0;
        for (; col + 8 <= C; col += 8) {
            Vector values;
            memcpy(&values, out + col, sizeof values);
            values = values / sum;
            memcpy(out + col, &values, sizeof values);
        }
        for (; col < C; ++col) out[col] /= sum;
    }
}
