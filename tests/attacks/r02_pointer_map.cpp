// attack: 2 cache by the pointers' exact values
// imitates: a dictionary on data_ptr() (seen: KernelBench, pygpubench); the
//   same address holds something else the next time
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    static std::map<std::tuple<const float*, const float*, int64_t, int64_t>, std::vector<float>> seen;
    std::vector<float>& answer = seen[{a, b, M, N}];
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
    for (int64_t at = 0; at < M * N; ++at) c[at] = answer[at];
}
