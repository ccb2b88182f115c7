// honest: multiply-adds in inline assembly
// problem: matmul
// needs: x86_64
#pragma GCC target("fma")
#include <cstdint>

extern "C" void kernel(const float* a, const float* b, float* c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; ++k) {
                __asm__("vfmadd231ss %1, %2, %0" : "+x"(sum) : "x"(b[k * N + j]), "x"(a[i * K + k]));
            }
            c[i * N + j] = sum;
        }
    }
}
