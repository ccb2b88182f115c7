void scale(const float *restrict x, float *restrict y, long N) {
    long i = 0;
    for (; i + 4 <= N; i += 4) {
        y[i] = 2.0f * x[i];
        y[i + 1] = 2.0f * x[i + 1];
        y[i + 2] = 2.0f * x[i + 2];
        y[i + 3] = 2.0f * x[i + 3];
    }
    for (; i < N; i++)
        y[i] = 2.0f * x[i];
}
