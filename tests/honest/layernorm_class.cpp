// honest: a class with virtual functions and unique_ptr
// problem: layernorm
#include <cmath>
#include <cstdint>
#include <memory>

class Layer {
public:
    virtual ~Layer() = default;
    virtual void apply(const float* in, float* out, int64_t C) const = 0;
};

class Normalisation : public Layer {
public:
    Normalisation(const float* gamma, const float* beta) : gamma_(gamma), beta_(beta) {}

    void apply(const float* in, float* out, int64_t C) const override {
        double sum = 0.0, squares = 0.0;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const double mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const double scale = 1.0 / std::sqrt(squares / C + 1e-5);
        for (int64_t col = 0; col < C; ++col) {
            out[col] = static_cast<float>((in[col] - mean) * scale * gamma_[col] + beta_[col]);
        }
    }

private:
    const float *gamma_, *beta_;
};

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    const std::unique_ptr<Layer> layer = std::make_unique<Normalisation>(gamma, beta);
    for (int64_t row = 0; row < R; ++row) layer->apply(x + row * C, y + row * C, C);
}
