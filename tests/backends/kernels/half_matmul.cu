// 16 x 16 tiles on the tensor cores: a warp a tile, float32 rounded to half on the way in.
#include <cuda_fp16.h>
#include <mma.h>
#pragma kernelcast grid((N + 15) / 16, (M + 15) / 16) block(32)
extern "C" __global__ void kernel(const float* a, const float* b, float* c, int M, int N, int K) {
    using namespace nvcuda::wmma;
    __shared__ half as[256], bs[256];
    __shared__ float cs[256];
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    fragment<accumulator, 16, 16, 16, float> sums;
    fill_fragment(sums, 0.0f);
    for (int start = 0; start < K; start += 16) {
        for (int e = threadIdx.x; e < 256; e += 32) {
            int i = row + e / 16, j = column + e % 16;
            as[e] = __float2half(i < M && start + e % 16 < K ? a[i * K + start + e % 16] : 0.0f);
            bs[e] = __float2half(j < N && start + e / 16 < K ? b[(start + e / 16) * N + j] : 0.0f);
        }
        __syncwarp();
        fragment<matrix_a, 16, 16, 16, half, row_major> one;
        fragment<matrix_b, 16, 16, 16, half, row_major> other;
        load_matrix_sync(one, as, 16);
        load_matrix_sync(other, bs, 16);
        mma_sync(sums, one, other, sums);
        __syncwarp();
    }
    store_matrix_sync(cs, sums, 16, mem_row_major);
    __syncwarp();
    for (int e = threadIdx.x; e < 256; e += 32) {
        int i = row + e / 16, j = column + e % 16;
        if (i < M && j < N) c[i * N + j] = cs[e];
    }
}
