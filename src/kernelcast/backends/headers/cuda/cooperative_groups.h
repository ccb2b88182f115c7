// Blocks, tiles of a warp and their reductions.
#pragma once

namespace cooperative_groups {
struct thread_block {
  static void sync() { __syncthreads(); }
  static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned num_threads() { return size(); }
  static unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  static dim3 group_index() { return dim3(blockIdx); }
  static dim3 thread_index() { return dim3(threadIdx); }
};
inline thread_block this_thread_block() { return {}; }
inline void sync(const thread_block&) { __syncthreads(); }
template <unsigned Size, class Parent = thread_block>
struct thread_block_tile {
  static_assert(Size <= 32, "kernelcast: tiles have a warp at most");
  static unsigned first() { return kc::lane() & ~(Size - 1); }
  static unsigned mask() { return (Size == 32 ? ~0u : (1u << (Size & 31)) - 1) << first(); }
  static void sync() { __syncwarp(mask()); }
  static unsigned size() { return Size; }
  static unsigned num_threads() { return Size; }
  static unsigned thread_rank() { return kc::lane() & (Size - 1); }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }
  static unsigned meta_group_size() { return (thread_block::size() + Size - 1) / Size; }
  template <class T>
  T shfl(T v, int source) const {
    return __shfl_sync(mask(), v, source, Size);
  }
  template <class T>
  T shfl_down(T v, unsigned by) const {
    return __shfl_down_sync(mask(), v, by, Size);
  }
  template <class T>
  T shfl_up(T v, unsigned by) const {
    return __shfl_up_sync(mask(), v, by, Size);
  }
  template <class T>
  T shfl_xor(T v, unsigned with) const {
    return __shfl_xor_sync(mask(), v, with, Size);
  }
  int any(int said) const { return __any_sync(mask(), said); }
  int all(int said) const { return __all_sync(mask(), said); }
  unsigned ballot(int said) const { return __ballot_sync(mask(), said) >> first(); }
};
template <unsigned Size, class Parent>
thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
  return {};
}
template <class T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct greater {
  T operator()(T a, T b) const { return a > b ? a : b; }
};
template <class T>
struct less {
  T operator()(T a, T b) const { return a < b ? a : b; }
};
template <class Tile, class T, class Operation>
T reduce(const Tile& tile, T v, Operation operation) {
  for (unsigned by = tile.size() / 2; by; by /= 2) v = operation(v, tile.shfl_xor(v, by));
  return v;
}
}  // namespace cooperative_groups
