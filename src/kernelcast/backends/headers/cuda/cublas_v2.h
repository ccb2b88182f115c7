// The products of cuBLAS that are simple to state; arrays lie by columns.
#pragma once

using cublasHandle_t = struct kernelcast_blas*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH,
  CUBLAS_TENSOR_OP_MATH,
  CUBLAS_PEDANTIC_MATH,
  CUBLAS_TF32_TENSOR_OP_MATH
};
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
inline cublasStatus_t cublasCreate(cublasHandle_t* h) {
  return *h = nullptr, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetPointerMode(cublasHandle_t, cublasPointerMode_t mode) {
  if (mode != CUBLAS_POINTER_MODE_HOST) kc::undecided("cuBLAS with scalars on the device");
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m,
                                  int n, int k, const float* alpha, const float* a, int lda,
                                  const float* b, int ldb, const float* beta, float* c, int ldc) {
  const bool at = ta != CUBLAS_OP_N, bt = tb != CUBLAS_OP_N;
  if (m < 0 || n < 0 || k < 0 || lda < (at ? k : m) || ldb < (bt ? n : k) || ldc < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  for (int column = 0; column < n; ++column)
    for (int row = 0; row < m; ++row) {
      double sum = 0;
      for (int i = 0; i < k; ++i)
        sum += double(a[at ? int64_t{row} * lda + i : int64_t{i} * lda + row]) *
               b[bt ? int64_t{i} * ldb + column : int64_t{column} * ldb + i];
      float& made = c[int64_t{column} * ldc + row];
      made = *beta == 0 ? *alpha * sum : *alpha * sum + *beta * made;
    }
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t ta,
                                                cublasOperation_t tb, int m, int n, int k,
                                                const float* alpha, const float* a, int lda,
                                                long long sa, const float* b, int ldb, long long sb,
                                                const float* beta, float* c, int ldc, long long sc,
                                                int count) {
  for (int at = 0; at < count; ++at)
    if (auto status = cublasSgemm(h, ta, tb, m, n, k, alpha, a + at * sa, lda, b + at * sb, ldb,
                                  beta, c + at * sc, ldc))
      return status;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSgemv(cublasHandle_t h, cublasOperation_t t, int m, int n,
                                  const float* alpha, const float* a, int lda, const float* x,
                                  int incx, const float* beta, float* y, int incy) {
  if (incx != 1 || incy != 1) kc::undecided("cublasSgemv with strides");
  const bool is_plain = t == CUBLAS_OP_N;
  const int rows = is_plain ? m : n, inner = is_plain ? n : m;
  return cublasSgemm(h, t, CUBLAS_OP_N, rows, 1, inner, alpha, a, lda, x, inner, beta, y, rows);
}
