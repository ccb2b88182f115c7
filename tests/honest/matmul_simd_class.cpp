// honest: a small class of eight floats with operators, over the compiler's vectors
// problem: matmul
#include <cstdint>
#include <cstring>

class Eight {
public:
    Eight() : lanes{} {}
    explicit Eight(float value) : lanes(value - Lanes{}) {}
    static Eight from(const float* p) {
        Eight value;
        std::memcpy(&value.lanes, p, sizeof value.lanes);
        return value;
    }
    void to(float* p) const { std::memcpy(p, &lanes, sizeof lanes); }
    Eight& operator+=(const Eight& other) { return lanes += other.lanes, *this; }
    friend Eight operator*(Eight one, const Eight& other) { return one.lanes *= other.lanes, one; }

private:
    typedef float Lanes __attribute__((vector_size(32)));
    Lanes lanes;
};

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        int64_t j = 0;
        for (; j + 8 <= N; j += 8) {
            Eight sum;
            for (int64_t k = 0; k < K; ++k) sum += Eight(a[i * K + k]) * Eight::from(b + k * N + j);
            sum.to(c + i * N + j);
        }
        for (; j < N; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
            c[i * N + j] = sum;
        }
    }
}
