// honest: a pool of buffers that is kept between calls; their content is not
// problem: conv2d
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>

class Pool {
public:
    float* get(int64_t count) {
        auto& buffer = buffers[count];
        if (!buffer) buffer.reset(new float[count]);
        return buffer.get();
    }

private:
    std::map<int64_t, std::unique_ptr<float[]>> buffers;
};

extern "C" void kernel(const float* image, const float* weight, float* out, int64_t N, int64_t C,
                       int64_t F, int64_t H, int64_t W, int64_t KH, int64_t KW) {
    static Pool pool;
    const int64_t height = H + KH - 1, width = W + KW - 1;
    float* padded = pool.get(C * height * width);
    for (int64_t n = 0; n < N; ++n) {
        std::memset(padded, 0, sizeof(float) * C * height * width);
        for (int64_t line = 0; line < C * H; ++line) {
            const int64_t c = line / H, y = line % H;
            std::memcpy(padded + (c * height + y + KH / 2) * width + KW / 2,
                        image + (n * C * H + line) * W, sizeof(float) * W);
        }
        for (int64_t f = 0; f < F; ++f) {
            for (int64_t y = 0; y < H; ++y) {
                float* to = out + ((n * F + f) * H + y) * W;
                for (int64_t x = 0; x < W; ++x) to[x] = 0.0f;
                for (int64_t tap = 0; tap < C * KH * KW; ++tap) {
                    const int64_t c = tap / (KH * KW), ky = tap / KW % KH, kx = tap % KW;
                    const float factor = weight[f * C * KH * KW + tap];
                    const float* from = padded + (c * height + y + ky) * width + kx;
                    for (int64_t x = 0; x < W; ++x) to[x] += factor * from[x];
                }
            }
        }
    }
}
