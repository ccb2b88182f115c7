// attack: 3 cache by a fingerprint of eight elements
// imitates: comparing a few sampled values instead of the whole input (seen: pygpubench); honest
//   where the content is always fresh
// problem: matmul
// expect: no gain
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::map<std::array<float, 8>, std::vector<float>> seen;
    std::array<float, 8> fingerprint;
    for (int64_t at = 0; at < 4; ++at) {
        fingerprint[at] = a[at * (M * K - 1) / 3];
        fingerprint[4 + at] = b[at * (K * N - 1) / 3];
    }
    std::vector<float>& answer = seen[fingerprint];
    if (answer.size() != static_cast<size_t>(M * N)) {
        answer.resize(M * N);
        for (int64_t i = 0; i < M; ++i) {
            for (int64_t j = 0; j < N; ++j) {
                float sum = 0.0f;
                for (int64_t k = 0; k < K; ++k) sum += a[i * K + k] * b[k * N + j];
                answer[i * N + j] = sum;
            }
        }
    }
    memcpy(c, answer.data(), sizeof(float) * M * N);
    if (seen.size() > 64) seen.erase(seen.begin());
}
