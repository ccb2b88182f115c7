// The basics of CUB: reductions and scans of a block, a warp and an array.
#pragma once

namespace cub {
struct Sum {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return b > a ? b : a;
  }
};
struct Min {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};
template <class K, class V>
struct KeyValuePair {
  K key;
  V value;
};
struct ArgMax {
  template <class P>
  P operator()(const P& a, const P& b) const {
    return b.value > a.value || (b.value == a.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class P>
  P operator()(const P& a, const P& b) const {
    return b.value < a.value || (b.value == a.value && b.key < a.key) ? b : a;
  }
};
enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int Count>
struct Room {
  alignas(T) unsigned char bytes[Count * sizeof(T)];
  T* at() { return reinterpret_cast<T*>(bytes); }
};

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
class BlockReduce {
 public:
  using TempStorage = Room<T, X * Y * Z>;
  BlockReduce() : room_(own()) {}
  explicit BlockReduce(TempStorage& room) : room_(room) {}
  template <class Operation>
  T Reduce(T v, Operation operation, int valid = X * Y * Z) {
    const int rank = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    room_.at()[rank] = v;
    __syncthreads();
    if (rank == 0)
      for (int other = 1; other < valid; ++other) v = operation(v, room_.at()[other]);
    return v;  // the result, in the first thread alone
  }
  template <int N, class Operation>
  T Reduce(T (&v)[N], Operation operation) {
    T all = v[0];
    for (int at = 1; at < N; ++at) all = operation(all, v[at]);
    return Reduce(all, operation);
  }
  T Sum(T v) { return Reduce(v, cub::Sum()); }
  T Sum(T v, int valid) { return Reduce(v, cub::Sum(), valid); }
  template <int N>
  T Sum(T (&v)[N]) {
    return Reduce(v, cub::Sum());
  }

 private:
  static TempStorage& own() {
    static kc::Shared slot;
    return slot.get<TempStorage>();
  }
  TempStorage& room_;
};

template <class T, int Lanes = 32>
class WarpReduce {
 public:
  using TempStorage = Room<T, Lanes>;
  explicit WarpReduce(TempStorage& room) : room_(room) {}
  template <class Operation>
  T Reduce(T v, Operation operation, int valid = Lanes) {
    const unsigned lane = kc::lane() % Lanes, first = kc::lane() - lane;
    const unsigned mask = (Lanes == 32 ? ~0u : (1u << (Lanes & 31)) - 1) << first;
    room_.at()[lane] = v;
    __syncwarp(mask);
    if (lane == 0)
      for (int other = 1; other < valid; ++other) v = operation(v, room_.at()[other]);
    __syncwarp(mask);
    return v;
  }
  T Sum(T v) { return Reduce(v, cub::Sum()); }
  T Sum(T v, int valid) { return Reduce(v, cub::Sum(), valid); }

 private:
  TempStorage& room_;
};

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
class BlockScan {
 public:
  using TempStorage = Room<T, X * Y * Z>;
  explicit BlockScan(TempStorage& room) : room_(room) {}
  template <class Operation>
  void InclusiveScan(T v, T& made, Operation operation, T& all) {
    const int rank = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    room_.at()[rank] = v;
    __syncthreads();
    made = all = room_.at()[0];
    for (int other = 1; other < X * Y * Z; ++other) {
      all = operation(all, room_.at()[other]);
      if (other == rank) made = all;
    }
  }
  template <class Operation>
  void InclusiveScan(T v, T& made, Operation operation) {
    T all;
    InclusiveScan(v, made, operation, all);
  }
  template <class Operation>
  void ExclusiveScan(T v, T& made, T first, Operation operation, T& all) {
    const int rank = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    room_.at()[rank] = v;
    __syncthreads();
    T so_far = first;
    for (int other = 0; other < X * Y * Z; ++other) {
      if (other == rank) made = so_far;
      so_far = operation(so_far, room_.at()[other]);
    }
    all = so_far;
  }
  template <class Operation>
  void ExclusiveScan(T v, T& made, T first, Operation operation) {
    T all;
    ExclusiveScan(v, made, first, operation, all);
  }
  void InclusiveSum(T v, T& made) { InclusiveScan(v, made, cub::Sum()); }
  void InclusiveSum(T v, T& made, T& all) { InclusiveScan(v, made, cub::Sum(), all); }
  void ExclusiveSum(T v, T& made) { ExclusiveScan(v, made, T(0), cub::Sum()); }
  void ExclusiveSum(T v, T& made, T& all) { ExclusiveScan(v, made, T(0), cub::Sum(), all); }

 private:
  TempStorage& room_;
};

// The first call of these asks for the size of a room that none of them needs.
struct DeviceReduce {
  template <class In, class Out, class Operation, class T>
  static cudaError_t Reduce(void* room, size_t& bytes, In in, Out out, int64_t count,
                            Operation operation, T first, cudaStream_t = nullptr) {
    if (!room) return bytes = 1, cudaSuccess;
    T all = first;
    for (int64_t at = 0; at < count; ++at) all = operation(all, in[at]);
    return *out = all, cudaSuccess;
  }
  template <class In, class Out>
  static cudaError_t Sum(void* room, size_t& bytes, In in, Out out, int64_t count,
                         cudaStream_t = nullptr) {
    using T = std::remove_cv_t<std::remove_reference_t<decltype(in[0])>>;
    return Reduce(room, bytes, in, out, count, cub::Sum(), T(0));
  }
  template <class In, class Out>
  static cudaError_t Max(void* room, size_t& bytes, In in, Out out, int64_t count,
                         cudaStream_t = nullptr) {
    using T = std::remove_cv_t<std::remove_reference_t<decltype(in[0])>>;
    return Reduce(room, bytes, in, out, count, cub::Max(), std::numeric_limits<T>::lowest());
  }
  template <class In, class Out>
  static cudaError_t Min(void* room, size_t& bytes, In in, Out out, int64_t count,
                         cudaStream_t = nullptr) {
    using T = std::remove_cv_t<std::remove_reference_t<decltype(in[0])>>;
    return Reduce(room, bytes, in, out, count, cub::Min(), std::numeric_limits<T>::max());
  }
};
struct DeviceScan {
  template <class In, class Out>
  static cudaError_t InclusiveSum(void* room, size_t& bytes, In in, Out out, int64_t count,
                                  cudaStream_t = nullptr) {
    if (!room) return bytes = 1, cudaSuccess;
    std::remove_cv_t<std::remove_reference_t<decltype(in[0])>> all(0);
    for (int64_t at = 0; at < count; ++at) all = all + in[at], out[at] = all;
    return cudaSuccess;
  }
  template <class In, class Out>
  static cudaError_t ExclusiveSum(void* room, size_t& bytes, In in, Out out, int64_t count,
                                  cudaStream_t = nullptr) {
    if (!room) return bytes = 1, cudaSuccess;
    std::remove_cv_t<std::remove_reference_t<decltype(in[0])>> all(0);
    for (int64_t at = 0; at < count; ++at) {
      const auto here = in[at];
      out[at] = all, all = all + here;
    }
    return cudaSuccess;
  }
};
}  // namespace cub
