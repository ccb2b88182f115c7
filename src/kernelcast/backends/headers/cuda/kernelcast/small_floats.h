// CUDA's 16-bit floating-point types, by those of PyTorch. Sums and products are rounded once.
#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace kc {

template <class S>
struct Small {
  S v;
  Small() = default;
  Small(S s) : v(s) {}
  Small(float f) : v(f) {}
  Small(double f) : v(float(f)) {}
#ifdef __CUDA_NO_HALF_CONVERSIONS__
  explicit operator float() const { return v; }
#else
  Small(int i) : v(float(i)) {}
  operator float() const { return v; }
#endif
  operator S() const { return v; }
};
template <class S>
struct alignas(4) Small2 {
  Small<S> x, y;
  Small2() = default;
  Small2(Small<S> x, Small<S> y) : x(x), y(y) {}
};
template <class S>
float wide(Small<S> a) {
  return a.v;
}
template <class S>
Small<S> narrow(float f) {
  return Small<S>(S(f));
}

#define KC_BOTH(name, name2, expression)      \
  template <class S>                          \
  Small<S> name(Small<S> s, Small<S> t) {     \
    float a = wide(s), b = wide(t);           \
    return narrow<S>(expression);             \
  }                                           \
  template <class S>                          \
  Small2<S> name2(Small2<S> s, Small2<S> t) { \
    return {name(s.x, t.x), name(s.y, t.y)};  \
  }
#define KC_ONE(name, name2, expression) \
  template <class S>                    \
  Small<S> name(Small<S> s) {           \
    float a = wide(s);                  \
    return narrow<S>(expression);       \
  }                                     \
  template <class S>                    \
  Small2<S> name2(Small2<S> s) {        \
    return {name(s.x), name(s.y)};      \
  }
#define KC_ASK(name, expression)      \
  template <class S>                  \
  bool name(Small<S> s, Small<S> t) { \
    float a = wide(s), b = wide(t);   \
    return expression;                \
  }
#define KC_ALL                            \
  KC_BOTH(__hadd, __hadd2, a + b)         \
  KC_BOTH(__hsub, __hsub2, a - b)         \
  KC_BOTH(__hmul, __hmul2, a* b)          \
  KC_BOTH(__hdiv, __h2div, a / b)         \
  KC_BOTH(__hadd_rn, __hadd2_rn, a + b)   \
  KC_BOTH(__hmul_rn, __hmul2_rn, a* b)    \
  KC_BOTH(__hmax, __hmax2, ::fmaxf(a, b)) \
  KC_BOTH(__hmin, __hmin2, ::fminf(a, b)) \
  KC_ONE(__hneg, __hneg2, -a)             \
  KC_ONE(__habs, __habs2, ::fabsf(a))     \
  KC_ONE(hexp, h2exp, ::expf(a))          \
  KC_ONE(hexp2, h2exp2, ::exp2f(a))       \
  KC_ONE(hexp10, h2exp10, ::exp10f(a))    \
  KC_ONE(hlog, h2log, ::logf(a))          \
  KC_ONE(hlog2, h2log2, ::log2f(a))       \
  KC_ONE(hlog10, h2log10, ::log10f(a))    \
  KC_ONE(hsqrt, h2sqrt, ::sqrtf(a))       \
  KC_ONE(hrsqrt, h2rsqrt, 1 / ::sqrtf(a)) \
  KC_ONE(hrcp, h2rcp, 1 / a)              \
  KC_ONE(hsin, h2sin, ::sinf(a))          \
  KC_ONE(hcos, h2cos, ::cosf(a))          \
  KC_ONE(htanh, h2tanh, ::tanhf(a))       \
  KC_ONE(hfloor, h2floor, ::floorf(a))    \
  KC_ONE(hceil, h2ceil, ::ceilf(a))       \
  KC_ONE(htrunc, h2trunc, ::truncf(a))    \
  KC_ONE(hrint, h2rint, ::rintf(a))       \
  KC_ASK(__heq, a == b)                   \
  KC_ASK(__hne, a != b)                   \
  KC_ASK(__hlt, a < b)                    \
  KC_ASK(__hle, a <= b)                   \
  KC_ASK(__hgt, a > b)                    \
  KC_ASK(__hge, a >= b)
KC_ALL
template <class S>
Small<S> __hfma(Small<S> a, Small<S> b, Small<S> c) {
  return narrow<S>(::fmaf(wide(a), wide(b), wide(c)));
}
template <class S>
Small2<S> __hfma2(Small2<S> a, Small2<S> b, Small2<S> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class S>
bool __hisnan(Small<S> a) {
  return std::isnan(wide(a));
}
template <class S>
int __hisinf(Small<S> a) {
  return std::isinf(wide(a)) ? (wide(a) > 0 ? 1 : -1) : 0;
}
template <class S>
float __low2float(Small2<S> a) {
  return wide(a.x);
}
template <class S>
float __high2float(Small2<S> a) {
  return wide(a.y);
}

#ifndef __CUDA_NO_HALF_OPERATORS__
#define KC_OPERATOR(sign)                                     \
  template <class S>                                          \
  Small<S> operator sign(Small<S> a, Small<S> b) {            \
    return narrow<S>(wide(a) sign wide(b));                   \
  }                                                           \
  template <class S>                                          \
  Small2<S> operator sign(Small2<S> a, Small2<S> b) {         \
    return {a.x sign b.x, a.y sign b.y};                      \
  }                                                           \
  template <class S>                                          \
  Small<S>& operator sign## = (Small<S> & a, Small<S> b) {    \
    return a = a sign b;                                      \
  }                                                           \
  template <class S>                                          \
  Small2<S>& operator sign## = (Small2<S> & a, Small2<S> b) { \
    return a = a sign b;                                      \
  }
KC_OPERATOR(+)
KC_OPERATOR(-)
KC_OPERATOR(*)
KC_OPERATOR(/)
#undef KC_OPERATOR
#define KC_OPERATOR(sign)                      \
  template <class S>                           \
  bool operator sign(Small<S> a, Small<S> b) { \
    return wide(a) sign wide(b);               \
  }
KC_OPERATOR(<)
KC_OPERATOR(>)
KC_OPERATOR(<=)
KC_OPERATOR(>=)
KC_OPERATOR(==)
KC_OPERATOR(!=)
#undef KC_OPERATOR
template <class S>
Small<S> operator-(Small<S> a) {
  return narrow<S>(-wide(a));
}
#endif
#undef KC_BOTH
#undef KC_ONE
#undef KC_ASK
#undef KC_ALL

template <class S>
Small<S> atomicAdd(Small<S>* p, Small<S> v) {
  Small<S> old = *p;
  *p = __hadd(old, v);
  return old;
}
template <class S>
Small2<S> atomicAdd(Small2<S>* p, Small2<S> v) {
  Small2<S> old = *p;
  *p = __hadd2(old, v);
  return old;
}
}  // namespace kc
// A call without namespace finds those above by its arguments.

#define KC_CONVERSIONS(T, S, half)                                                      \
  inline float __##half##2float(T a) { return kc::wide(a); }                            \
  inline T __float2##half(float a) { return kc::narrow<S>(a); }                         \
  inline T __float2##half##_rn(float a) { return kc::narrow<S>(a); }                    \
  inline T __double2##half(double a) { return kc::narrow<S>(a); }                       \
  inline T __int2##half##_rn(int a) { return kc::narrow<S>(a); }                        \
  inline T __uint2##half##_rn(unsigned a) { return kc::narrow<S>(a); }                  \
  inline int __##half##2int_rn(T a) { return ::rintf(kc::wide(a)); }                    \
  inline int __##half##2int_rz(T a) { return kc::wide(a); }                             \
  inline T __ushort_as_##half(unsigned short a) { return kc::as<T>(a); }                \
  inline T __short_as_##half(short a) { return kc::as<T>(a); }                          \
  inline unsigned short __##half##_as_ushort(T a) { return kc::as<unsigned short>(a); } \
  inline short __##half##_as_short(T a) { return kc::as<short>(a); }
