// honest: plain pthreads with a pthread_barrier_t, joined before the return
// problem: matmul
#include <pthread.h>

#include <cstdint>

struct Share {
    const float *a, *b;
    float* c;
    int64_t M, N, K;
    int64_t part;
    pthread_barrier_t* ready;
};

static void* work(void* given) {
    const Share& s = *static_cast<const Share*>(given);
    for (int64_t i = s.part; i < s.M * s.N; i += 2) s.c[i] = 0.0f;
    pthread_barrier_wait(s.ready);
    for (int64_t i = s.M * s.part / 2; i < s.M * (s.part + 1) / 2; ++i) {
        for (int64_t k = 0; k < s.K; ++k) {
            for (int64_t j = 0; j < s.N; ++j) s.c[i * s.N + j] += s.a[i * s.K + k] * s.b[k * s.N + j];
        }
    }
    return nullptr;
}

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    pthread_barrier_t ready;
    pthread_barrier_init(&ready, nullptr, 2);
    Share shares[2] = {{a, b, c, M, N, K, 0, &ready}, {a, b, c, M, N, K, 1, &ready}};
    pthread_t helper;
    pthread_create(&helper, nullptr, work, &shares[1]);
    work(&shares[0]);
    pthread_join(helper, nullptr);
    pthread_barrier_destroy(&ready);
}
