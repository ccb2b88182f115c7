// honest: OpenMP tasks, halved until they are small
// problem: layernorm
#include <cmath>
#include <cstdint>

struct Layer {
    const float *x, *gamma, *beta;
    float* y;
    int64_t C;
};

static void norm(const Layer& layer, int64_t first, int64_t last) {
    if (last - first > 64) {
        const int64_t middle = (first + last) / 2;
#pragma omp task shared(layer)
        norm(layer, first, middle);
        norm(layer, middle, last);
#pragma omp taskwait
        return;
    }
    for (int64_t row = first; row < last; ++row) {
        const float* in = layer.x + row * layer.C;
        float* out = layer.y + row * layer.C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < layer.C; ++col) sum += in[col];
        const float mean = sum / layer.C;
        for (int64_t col = 0; col < layer.C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float scale = 1.0f / std::sqrt(squares / layer.C + 1e-5f);
        for (int64_t col = 0; col < layer.C; ++col) {
            out[col] = (in[col] - mean) * scale * layer.gamma[col] + layer.beta[col];
        }
    }
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    const Layer layer = {x, gamma, beta, y, C};
#pragma omp parallel num_threads(2)
#pragma omp single
    norm(layer, 0, R);
}
