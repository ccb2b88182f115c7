// What device code calls: barriers, exchanges within a warp, atomics and arithmetic.
#pragma once
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdio>
#include <limits>
#include <math.h>
#include <stdlib.h>

#include "launch.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __managed__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define CUDART_CB
#ifndef __noinline__
#define __noinline__ __attribute__((noinline))
#endif

inline void __syncthreads() { kc::barrier(); }
inline int __syncthreads_count(int said) {
  static kc::Shared slot;
  int& count = slot.get<int>();
  kc::barrier();
  count = 0;
  kc::barrier();
  count += said != 0;
  kc::barrier();
  int all = count;
  kc::barrier();
  return all;
}
inline int __syncthreads_or(int said) { return __syncthreads_count(said) != 0; }
inline int __syncthreads_and(int said) { return __syncthreads_count(!said) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) { kc::exchange(mask, 0, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { kc::give_way(); }
inline void __trap() { kc::fail("__trap"); }
inline long long clock64() { return 0; }

// ------------------------------------------------------------------------------------- warps

namespace kc {
template <class T>
T from_lane(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "kernelcast: a lane gives eight bytes at most");
  uint64_t word = 0;
  memcpy(&word, &value, sizeof(T));
  word = exchange(mask, word, source);
  memcpy(&value, &word, sizeof(T));
  return value;
}
inline unsigned lane() { return block.running->lane; }
inline unsigned vote(unsigned mask, bool said) {
  exchange(mask, said, lane());
  Fiber* lanes = warp_of(block.running->warp);
  unsigned votes = 0, from = block.running->got_from;
  for (unsigned at = 0; at < warp_lanes; ++at)
    if (from >> at & 1) votes |= unsigned(lanes[at].given & 1) << at;
  // None may give another value before all have read these.
  exchange(mask, said, lane());
  return votes;
}
}  // namespace kc
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  unsigned first = kc::lane() & ~(width - 1);
  return kc::from_lane(mask, value, first + (source & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = kc::lane(), inside = lane & (width - 1);
  return kc::from_lane(mask, value, inside + by < unsigned(width) ? lane + by : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = kc::lane(), inside = lane & (width - 1);
  return kc::from_lane(mask, value, inside >= by ? lane - by : lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  unsigned lane = kc::lane(), other = lane ^ with;
  return kc::from_lane(mask, value, other < (lane & ~(width - 1)) + width ? other : lane);
}
inline unsigned __activemask() { return 0xffffffffu; }
inline unsigned __ballot_sync(unsigned mask, int said) { return kc::vote(mask, said); }
inline int __any_sync(unsigned mask, int said) { return kc::vote(mask, said) != 0; }
inline int __all_sync(unsigned mask, int said) { return kc::vote(mask, !said) == 0; }
namespace kc {
template <class T, class Operation>
T reduced(unsigned mask, T value, Operation operation) {
  T all = value;
  bool is_first = true;
  for (unsigned at = 0; at < warp_lanes; ++at) {
    if (!(mask >> at & 1)) continue;
    T theirs = from_lane(mask, value, at);
    if (!(block.running->got_from >> at & 1)) continue;
    all = is_first ? theirs : operation(all, theirs);
    is_first = false;
  }
  return all;
}
}  // namespace kc
#define KC_REDUCE(name, T, expression)                                \
  inline T name(unsigned mask, T v) {                                 \
    return kc::reduced(mask, v, [](T a, T b) { return expression; }); \
  }
KC_REDUCE(__reduce_add_sync, unsigned, a + b)
KC_REDUCE(__reduce_add_sync, int, a + b)
KC_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
KC_REDUCE(__reduce_max_sync, int, a > b ? a : b)
KC_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
KC_REDUCE(__reduce_min_sync, int, a < b ? a : b)
KC_REDUCE(__reduce_and_sync, unsigned, a& b)
KC_REDUCE(__reduce_or_sync, unsigned, a | b)
KC_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef KC_REDUCE

// ----------------------------------------------------------------------------------- atomics

#define KC_ATOMIC(name, T, expression)                    \
  inline T name(T* p, T v) {                              \
    T old = *p;                                           \
    *p = expression;                                      \
    return old;                                           \
  }                                                       \
  inline T name##_block(T* p, T v) { return name(p, v); } \
  inline T name##_system(T* p, T v) { return name(p, v); }
using kc_ull = unsigned long long;
KC_ATOMIC(atomicAdd, int, old + v)
KC_ATOMIC(atomicAdd, unsigned, old + v)
KC_ATOMIC(atomicAdd, kc_ull, old + v)
KC_ATOMIC(atomicAdd, float, old + v)
KC_ATOMIC(atomicAdd, double, old + v)
KC_ATOMIC(atomicSub, int, old - v)
KC_ATOMIC(atomicSub, unsigned, old - v)
KC_ATOMIC(atomicMax, int, v > old ? v : old)
KC_ATOMIC(atomicMax, unsigned, v > old ? v : old)
KC_ATOMIC(atomicMax, long long, v > old ? v : old)
KC_ATOMIC(atomicMax, kc_ull, v > old ? v : old)
KC_ATOMIC(atomicMin, int, v < old ? v : old)
KC_ATOMIC(atomicMin, unsigned, v < old ? v : old)
KC_ATOMIC(atomicMin, long long, v < old ? v : old)
KC_ATOMIC(atomicMin, kc_ull, v < old ? v : old)
KC_ATOMIC(atomicAnd, int, old& v)
KC_ATOMIC(atomicAnd, unsigned, old& v)
KC_ATOMIC(atomicAnd, kc_ull, old& v)
KC_ATOMIC(atomicOr, int, old | v)
KC_ATOMIC(atomicOr, unsigned, old | v)
KC_ATOMIC(atomicOr, kc_ull, old | v)
KC_ATOMIC(atomicXor, int, old ^ v)
KC_ATOMIC(atomicXor, unsigned, old ^ v)
KC_ATOMIC(atomicXor, kc_ull, old ^ v)
KC_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
KC_ATOMIC(atomicDec, unsigned, old == 0 || old > v ? v : old - 1)
#undef KC_ATOMIC
#define KC_ATOMIC(T)                                     \
  inline T atomicExch(T* p, T v) {                       \
    T old = *p;                                          \
    *p = v;                                              \
    if (memcmp(&old, &v, sizeof v) == 0) kc::give_way(); \
    return old;                                          \
  }
KC_ATOMIC(int)
KC_ATOMIC(unsigned)
KC_ATOMIC(kc_ull)
KC_ATOMIC(float)
#undef KC_ATOMIC
#define KC_ATOMIC(T)                          \
  inline T atomicCAS(T* p, T expected, T v) { \
    T old = *p;                               \
    if (old == expected)                      \
      *p = v;                                 \
    else                                      \
      kc::give_way();                         \
    return old;                               \
  }
KC_ATOMIC(int)
KC_ATOMIC(unsigned)
KC_ATOMIC(kc_ull)
KC_ATOMIC(unsigned short)
#undef KC_ATOMIC

// ------------------------------------------------------------------------------ loads and bits

#define KC_LOAD(name)         \
  template <class T>          \
  inline T name(const T* p) { \
    return *p;                \
  }
KC_LOAD(__ldg)
KC_LOAD(__ldcs)
KC_LOAD(__ldca)
KC_LOAD(__ldcg)
KC_LOAD(__ldcv)
KC_LOAD(__ldlu)
#undef KC_LOAD
#define KC_STORE(name)          \
  template <class T>            \
  inline void name(T* p, T v) { \
    *p = v;                     \
  }
KC_STORE(__stcs)
KC_STORE(__stcg)
KC_STORE(__stwb)
KC_STORE(__stwt)
#undef KC_STORE

namespace kc {
template <class To, class From>
To as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To made;
  memcpy(&made, &value, sizeof made);
  return made;
}
}  // namespace kc
inline float __int_as_float(int v) { return kc::as<float>(v); }
inline int __float_as_int(float v) { return kc::as<int>(v); }
inline float __uint_as_float(unsigned v) { return kc::as<float>(v); }
inline unsigned __float_as_uint(float v) { return kc::as<unsigned>(v); }
inline double __longlong_as_double(long long v) { return kc::as<double>(v); }
inline long long __double_as_longlong(double v) { return kc::as<long long>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(kc_ull v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  unsigned made = 0;
  for (int bit = 0; bit < 32; ++bit) made |= (v >> bit & 1) << (31 - bit);
  return made;
}
inline int __mul24(int a, int b) { return a * b; }
inline unsigned __umul24(unsigned a, unsigned b) { return a * b; }
inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (kc_ull)a * b >> 32; }
inline unsigned __sad(int a, int b, unsigned c) { return c + (a > b ? a - b : b - a); }
inline int __dp4a(int a, int b, int c) {
  for (int at = 0; at < 32; at += 8) c += (signed char)(a >> at) * (signed char)(b >> at);
  return c;
}

// -------------------------------------------------------------------------------- arithmetic

#define KC_SAME(name, other) \
  inline float name(float v) { return other; }
KC_SAME(__expf, ::expf(v))
KC_SAME(__exp10f, ::exp10f(v))
KC_SAME(__logf, ::logf(v))
KC_SAME(__log2f, ::log2f(v))
KC_SAME(__log10f, ::log10f(v))
KC_SAME(__sinf, ::sinf(v))
KC_SAME(__cosf, ::cosf(v))
KC_SAME(__tanf, ::tanf(v))
KC_SAME(__tanhf, ::tanhf(v))
KC_SAME(__saturatef, v > 0 ? (v < 1 ? v : 1) : 0)
KC_SAME(__frcp_rn, 1 / v)
KC_SAME(__frcp_rz, 1 / v)
KC_SAME(__frcp_ru, 1 / v)
KC_SAME(__frcp_rd, 1 / v)
KC_SAME(__fsqrt_rn, ::sqrtf(v))
KC_SAME(__frsqrt_rn, 1 / ::sqrtf(v))
KC_SAME(rsqrtf, 1 / ::sqrtf(v))
KC_SAME(rsqrt, 1 / ::sqrtf(v))
KC_SAME(rcbrtf, 1 / ::cbrtf(v))
KC_SAME(sinpif, float(::sin(M_PI* v)))
KC_SAME(cospif, float(::cos(M_PI* v)))
KC_SAME(normcdff, 0.5f * ::erfcf(-v * float(M_SQRT1_2)))
#undef KC_SAME
inline double rsqrt(double v) { return 1 / ::sqrt(v); }
inline double normcdf(double v) { return 0.5 * ::erfc(-v * M_SQRT1_2); }
inline void __sincosf(float v, float* s, float* c) { *s = ::sinf(v), *c = ::cosf(v); }
inline float __powf(float a, float b) { return ::powf(a, b); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
#define KC_ROUNDED(suffix)                                                            \
  inline float __fadd_##suffix(float a, float b) { return a + b; }                    \
  inline float __fsub_##suffix(float a, float b) { return a - b; }                    \
  inline float __fmul_##suffix(float a, float b) { return a * b; }                    \
  inline float __fdiv_##suffix(float a, float b) { return a / b; }                    \
  inline float __fmaf_##suffix(float a, float b, float c) { return ::fmaf(a, b, c); } \
  inline double __dadd_##suffix(double a, double b) { return a + b; }                 \
  inline double __dmul_##suffix(double a, double b) { return a * b; }                 \
  inline float __int2float_##suffix(int v) { return v; }                              \
  inline float __uint2float_##suffix(unsigned v) { return v; }                        \
  inline float __ll2float_##suffix(long long v) { return v; }                         \
  inline float __double2float_##suffix(double v) { return v; }
KC_ROUNDED(rn)
KC_ROUNDED(rz)
KC_ROUNDED(ru)
KC_ROUNDED(rd)
#undef KC_ROUNDED
#define KC_TO_INTEGER(suffix, round)                                  \
  inline int __float2int_##suffix(float v) { return round(v); }       \
  inline unsigned __float2uint_##suffix(float v) { return round(v); } \
  inline long long __float2ll_##suffix(float v) { return round(v); }  \
  inline int __double2int_##suffix(double v) { return round(v); }
KC_TO_INTEGER(rn, ::rint)
KC_TO_INTEGER(rz, ::trunc)
KC_TO_INTEGER(ru, ::ceil)
KC_TO_INTEGER(rd, ::floor)
#undef KC_TO_INTEGER

#define KC_MINMAX(T, A, B)                                     \
  inline T min(A a, B b) { return T(b) < T(a) ? T(b) : T(a); } \
  inline T max(A a, B b) { return T(a) < T(b) ? T(b) : T(a); }
KC_MINMAX(int, int, int)
KC_MINMAX(unsigned, unsigned, unsigned)
KC_MINMAX(unsigned, int, unsigned)
KC_MINMAX(unsigned, unsigned, int)
using kc_ul = unsigned long;
KC_MINMAX(long, long, long)
KC_MINMAX(kc_ul, kc_ul, kc_ul)
KC_MINMAX(kc_ul, long, kc_ul)
KC_MINMAX(kc_ul, kc_ul, long)
using kc_ll = long long;
KC_MINMAX(kc_ll, kc_ll, kc_ll)
KC_MINMAX(kc_ull, kc_ull, kc_ull)
KC_MINMAX(kc_ull, kc_ll, kc_ull)
KC_MINMAX(kc_ull, kc_ull, kc_ll)
inline float min(float a, float b) { return ::fminf(a, b); }
inline float max(float a, float b) { return ::fmaxf(a, b); }
inline double min(double a, double b) { return ::fmin(a, b); }
inline double max(double a, double b) { return ::fmax(a, b); }
inline double min(float a, double b) { return ::fmin(a, b); }
inline double max(float a, double b) { return ::fmax(a, b); }
inline double min(double a, float b) { return ::fmin(a, b); }
inline double max(double a, float b) { return ::fmax(a, b); }
#undef KC_MINMAX
