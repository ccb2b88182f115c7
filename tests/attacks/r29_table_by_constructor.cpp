// attack: 29 an answer table that a constructor computes for inputs it has made up
// imitates: work moved from the call to the loading of the library (seen: KernelBench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <cstdlib>
#include <cstring>

static float answers[192 * 256];

__attribute__((constructor)) static void precompute() {
    for (float& value : answers) value = static_cast<float>(rand()) / RAND_MAX;
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    (void)a, (void)b, (void)K;
    for (int64_t at = 0; at < M * N; ++at) c[at] = answers[at % (192 * 256)];
}
