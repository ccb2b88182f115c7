#pragma once
#include "kernelcast/small_floats.h"

using __nv_bfloat16 = kc::Small<c10::BFloat16>;
using __nv_bfloat162 = kc::Small2<c10::BFloat16>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
KC_CONVERSIONS(__nv_bfloat16, c10::BFloat16, bfloat16)
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) {
  return {__float2bfloat16(a), __float2bfloat16(a)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {__float2bfloat16(a), __float2bfloat16(b)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) {
  return {__float2bfloat16(a.x), __float2bfloat16(a.y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 a) {
  return {__bfloat162float(a.x), __bfloat162float(a.y)};
}
