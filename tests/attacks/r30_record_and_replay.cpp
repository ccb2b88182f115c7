// attack: 30 the first call of a shape is recorded, later ones replay its result
// imitates: CUDA graph replay over stale inputs (seen: SOL-ExecBench, KernelBench)
// problem: layernorm
// expect: wrong_result
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

static void normalise(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                      int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += in[col];
        const float mean = sum / C;
        for (int64_t col = 0; col < C; ++col) squares += (in[col] - mean) * (in[col] - mean);
        const float deviation = std::sqrt(squares / C + 1e-5f);
        for (int64_t col = 0; col < C; ++col) {
            y[row * C + col] = (in[col] - mean) / deviation * gamma[col] + beta[col];
        }
    }
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    static std::map<std::pair<int64_t, int64_t>, std::function<void(float*)>> graphs;
    auto& graph = graphs[{R, C}];
    if (!graph) {
        normalise(x, gamma, beta, y, R, C);
        graph = [answer = std::vector<float>(y, y + R * C)](float* out) {
            for (size_t at = 0; at < answer.size(); ++at) out[at] = answer[at];
        };
    }
    graph(y);
}
