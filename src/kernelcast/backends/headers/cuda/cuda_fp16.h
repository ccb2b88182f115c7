#pragma once
#include "kernelcast/small_floats.h"

using __half = kc::Small<c10::Half>;
using __half2 = kc::Small2<c10::Half>;
using half = __half;
using half2 = __half2;
KC_CONVERSIONS(__half, c10::Half, half)
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __float2half2_rn(float a) { return {__float2half(a), __float2half(a)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half(a), __float2half(b)}; }
inline __half2 __float22half2_rn(float2 a) { return {__float2half(a.x), __float2half(a.y)}; }
inline float2 __half22float2(__half2 a) { return {__half2float(a.x), __half2float(a.y)}; }
