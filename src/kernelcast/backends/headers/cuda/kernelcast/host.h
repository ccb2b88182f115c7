// What host code calls of CUDA's runtime. All is done when a call returns.
#pragma once
#include "launch.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotReady = 600,
};
using cudaError = cudaError_t;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
enum cudaFuncCache {
  cudaFuncCachePreferNone,
  cudaFuncCachePreferShared,
  cudaFuncCachePreferL1,
  cudaFuncCachePreferEqual
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
constexpr int cudaSharedmemCarveoutMaxShared = 100;
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0,
                   cudaEventDisableTiming = 2;
using cudaEvent_t = struct kernelcast_event*;

struct cudaDeviceProp {
  char name[256] = "NVIDIA GPU";
  size_t totalGlobalMem = size_t{24} << 30, sharedMemPerBlock = 48 << 10;
  size_t sharedMemPerBlockOptin = 99 << 10, sharedMemPerMultiprocessor = 100 << 10;
  int regsPerBlock = 65536, warpSize = 32, maxThreadsPerBlock = 1024;
  int maxThreadsDim[3] = {1024, 1024, 64}, maxGridSize[3] = {2147483647, 65535, 65535};
  int major = 8, minor = 0, multiProcessorCount = 108, maxThreadsPerMultiProcessor = 2048;
  int l2CacheSize = 40 << 20, regsPerMultiprocessor = 65536, maxBlocksPerMultiProcessor = 32;
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t e) { return e ? "an error" : "no error"; }
inline const char* cudaGetErrorName(cudaError_t e) { return e ? "cudaError" : "cudaSuccess"; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* s) { return *s = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  return *s = nullptr, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) {
  return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return *e = nullptr, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  return *e = nullptr, cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) { return *p = {}, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const cudaDeviceProp p;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = p.sharedMemPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = p.sharedMemPerMultiprocessor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = p.sharedMemPerBlockOptin;
      break;
    default:
      kc::undecided("an attribute of the device");
  }
  return cudaSuccess;
}
template <class T>
cudaError_t cudaMalloc(T** pointer, size_t size) {
  return *pointer = static_cast<T*>(kc::allocate(size)), cudaSuccess;
}
template <class T>
cudaError_t cudaMallocAsync(T** pointer, size_t size, cudaStream_t) {
  return cudaMalloc(pointer, size);
}
template <class T>
cudaError_t cudaMallocManaged(T** pointer, size_t size, unsigned = 0) {
  return cudaMalloc(pointer, size);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t size, unsigned = 0) {
  return cudaMalloc(pointer, size);
}
inline cudaError_t cudaFree(void* pointer) { return kc::release(pointer), cudaSuccess; }
inline cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
inline cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  return memmove(to, from, size), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                                   cudaStream_t = nullptr) {
  return memmove(to, from, size), cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int value, size_t size) {
  return memset(to, value, size), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t = nullptr) {
  return memset(to, value, size), cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* from, size_t size, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
  if (offset + size > sizeof(T)) return cudaErrorInvalidValue;
  memcpy(reinterpret_cast<char*>(const_cast<std::remove_const_t<T>*>(&symbol)) + offset, from,
         size);
  return cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* from, size_t size,
                                    size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                                    cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, size, offset, kind);
}
template <class T>
cudaError_t cudaFuncSetAttribute(T, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (size_t(value) > kc::dynamic_bytes) return cudaErrorInvalidValue;
  if (size_t(value) > kc::allowed_shared) kc::allowed_shared = value;
  return cudaSuccess;
}
template <class T>
cudaError_t cudaFuncSetCacheConfig(T, cudaFuncCache) {
  return cudaSuccess;
}
template <class T>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, T, int, size_t) {
  return *blocks = 1, cudaSuccess;
}
template <class T>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* threads, T, size_t = 0, int = 0) {
  return *grid = 108, *threads = 256, cudaSuccess;
}
