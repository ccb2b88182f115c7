#pragma once
template <class T>
T gpuAtomicAdd(T* p, T v) {
  T old = *p;
  *p = old + v;
  return old;
}
template <class T>
void gpuAtomicAddNoReturn(T* p, T v) {
  gpuAtomicAdd(p, v);
}
template <class T>
T gpuAtomicMax(T* p, T v) {
  T old = *p;
  if (v > old) *p = v;
  return old;
}
template <class T>
T gpuAtomicMin(T* p, T v) {
  T old = *p;
  if (v < old) *p = v;
  return old;
}
