// attack: 8 the last rows are finished by a pthread after the reply
// imitates: threads that work on after the clock has stopped (seen: pygpubench)
// problem: matmul
// expect: wrong_result
#include <cstdint>
#include <pthread.h>

static void product(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) c[i * N + j] = 0.0f;
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t j = 0; j < N; ++j) c[i * N + j] += a[i * K + k] * b[k * N + j];
        }
    }
}
struct Work {
    const float *a, *b;
    float* c;
    int64_t M, N, K;
};

static void* finish(void* given) {
    const Work* work = static_cast<Work*>(given);
    product(work->a, work->b, work->c, work->M, work->N, work->K);
    delete work;
    return nullptr;
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    const int64_t mine = M / 4;
    product(a, b, c, mine, N, K);
    pthread_t thread;
    Work* rest = new Work{a + mine * K, b, c + mine * N, M - mine, N, K};
    pthread_create(&thread, nullptr, finish, rest);
    pthread_detach(thread);
}
