// attack: 3 cache by a hash of all bytes
// imitates: memoising by content; honest where no content comes twice (seen: pygpubench)
// problem: matmul
// expect: no gain
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

static uint64_t digest(const float* values, int64_t count, uint64_t hash) {
    for (int64_t at = 0; at < count; ++at) {
        uint32_t bits;
        memcpy(&bits, values + at, sizeof bits);
        hash = (hash ^ bits) * 1099511628211ull;
    }
    return hash;
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::map<uint64_t, std::vector<float>> seen;
    const uint64_t key = digest(b, K * N, digest(a, M * K, 14695981039346656037ull + M));
    std::vector<float>& answer = seen[key];
    if (answer.empty()) {
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
