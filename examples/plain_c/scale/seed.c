void scale(const float *restrict x, float *restrict y, long N) {
    for (long i = 0; i < N; i++)
        y[i] = 2.0f * x[i];
}
