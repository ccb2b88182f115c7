// honest: a virtual class for each way to multiply, chosen at run time by the shape
// problem: matmul
#include <cstdint>
#include <memory>

struct Multiply {
    virtual ~Multiply() = default;
    virtual void run(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) const = 0;
};

struct Dots final : Multiply {
    void run(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) const override {
        for (int64_t i = 0; i < M; ++i) {
            for (int64_t j = 0; j < N; ++j) {
                float sum = 0.0f;
                for (int64_t k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
                c[i * N + j] = sum;
            }
        }
    }
};

struct Rows final : Multiply {
    void run(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) const override {
        for (int64_t i = 0; i < M; ++i) {
            float* row = c + i * N;
            for (int64_t j = 0; j < N; ++j) row[j] = 0.0f;
            for (int64_t k = 0; k < K; ++k) {
                for (int64_t j = 0; j < N; ++j) row[j] += a[i * K + k] * b[k * N + j];
            }
        }
    }
};

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    std::unique_ptr<Multiply> way;
    if (N < 8) way = std::make_unique<Dots>();
    else way = std::make_unique<Rows>();
    way->run(a, b, c, M, N, K);
}
