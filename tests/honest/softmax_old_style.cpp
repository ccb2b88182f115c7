// honest: old-fashioned formatting, everything declared at the top
// problem: softmax
#include <math.h>
#include <stdint.h>

extern "C"
void
kernel (const float *x, float *y, int64_t R, int64_t C)
{
  int64_t row, col;
  float m, s;

  for (row = 0; row < R; row++, x += C, y += C)
    {
      m = *x; s = 0;
      for (col = 1; col < C; col++)
        if (x [col] > m)
          m = x [col];
      for (col = 0; col < C; col++)
        s += (y [col] = (float) exp ((double) (x [col] - m)));
      for (col = 0; col < C; col++)
        y [col] /= s;
    }
}
