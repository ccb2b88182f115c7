// honest: std::variant and std::visit choose between a narrow and a wide row
// problem: softmax
#include <cmath>
#include <cstdint>
#include <variant>

struct Narrow {
    float largest(const float* in, int64_t C) const {
        float most = in[0];
        for (int64_t col = 1; col < C; ++col) most = in[col] > most ? in[col] : most;
        return most;
    }
};
struct Wide {
    float largest(const float* in, int64_t C) const {
        float lanes[16];
        for (float& lane : lanes) lane = in[0];
        for (int64_t col = 0; col + 16 <= C; col += 16) {
            for (int l = 0; l < 16; ++l) lanes[l] = in[col + l] > lanes[l] ? in[col + l] : lanes[l];
        }
        for (int64_t col = C / 16 * 16; col < C; ++col) lanes[0] = std::fmax(lanes[0], in[col]);
        float most = lanes[0];
        for (float lane : lanes) most = lane > most ? lane : most;
        return most;
    }
};

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    std::variant<Narrow, Wide> way;
    if (C >= 64) way = Wide{};
    for (int64_t row = 0; row < R; ++row) {
        const float* in = x + row * C;
        float* out = y + row * C;
        const float largest = std::visit([&](const auto& chosen) { return chosen.largest(in, C); }, way);
        float sum = 0.0f;
        for (int64_t col = 0; col < C; ++col) sum += out[col] = std::exp(in[col] - largest);
        for (int64_t col = 0; col < C; ++col) out[col] /= sum;
    }
}
