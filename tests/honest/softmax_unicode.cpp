// honest: unicode in comments and names, ✓ λ 日本語 "quoted" 'and' /* nested */
// problem: softmax
#include <cmath>
#include <cstdint>

/* Ĉiu vico aparte: unue la plej granda, poste Σ exp(xᵢ − max). */
extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    for (int64_t zeile = 0; zeile < R; ++zeile) {
        const float* ein = x + zeile * C;
        float* aus = y + zeile * C;
        float größte = ein[0], Σ = 0.0f;
        for (int64_t i = 1; i < C; ++i) größte = ein[i] > größte ? ein[i] : größte;
        for (int64_t i = 0; i < C; ++i) Σ += aus[i] = std::exp(ein[i] - größte);
        for (int64_t i = 0; i < C; ++i) aus[i] /= Σ;
    }
}
