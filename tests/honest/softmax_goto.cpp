// honest: goto instead of loops
// problem: softmax
#include <cmath>
#include <cstdint>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    int64_t row = 0, col;
    float largest, sum;
next_row:
    if (row == R) return;
    largest = x[row * C];
    sum = 0.0f;
    col = 0;
find:
    if (x[row * C + col] > largest) largest = x[row * C + col];
    if (++col < C) goto find;
    col = 0;
add:
    sum += y[row * C + col] = std::exp(x[row * C + col] - largest);
    if (++col < C) goto add;
    col = 0;
divide:
    y[row * C + col] /= sum;
    if (++col < C) goto divide;
    ++row;
    goto next_row;
}
