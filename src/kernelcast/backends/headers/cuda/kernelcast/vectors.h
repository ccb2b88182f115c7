// CUDA's vector types.
#pragma once

#define KC_VECTORS(T, name)                                                     \
  struct name##1 { T x; };                                                      \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                            \
  struct name##3 { T x, y, z; };                                                \
  struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
  inline name##1 make_##name##1(T x) { return {x}; }                            \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                    \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }            \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
KC_VECTORS(signed char, char)
KC_VECTORS(unsigned char, uchar)
KC_VECTORS(short, short)
KC_VECTORS(unsigned short, ushort)
KC_VECTORS(int, int)
KC_VECTORS(unsigned int, uint)
KC_VECTORS(long, long)
KC_VECTORS(unsigned long, ulong)
KC_VECTORS(long long, longlong)
KC_VECTORS(unsigned long long, ulonglong)
KC_VECTORS(float, float)
KC_VECTORS(double, double)
#undef KC_VECTORS

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
