// cuRAND's device interface by Philox 4x32-10, for all states that PyTorch extensions use.
#pragma once

struct curandStatePhilox4_32_10 {
  unsigned key[2] = {}, counter[4] = {}, out[4] = {};
  int next = 4;
  bool has_normal = false;
  float normal = 0;
};
using curandStatePhilox4_32_10_t = curandStatePhilox4_32_10;
using curandState = curandStatePhilox4_32_10;
using curandState_t = curandStatePhilox4_32_10;
using curandStateXORWOW_t = curandStatePhilox4_32_10;

namespace kc {
inline void philox(curandStatePhilox4_32_10& s) {
  unsigned c[4], k[2] = {s.key[0], s.key[1]};
  memcpy(c, s.counter, sizeof c);
  for (int round = 0; round < 10; ++round) {
    const kc_ull a = kc_ull{0xD2511F53} * c[0], b = kc_ull{0xCD9E8D57} * c[2];
    const unsigned next[4] = {unsigned(b >> 32) ^ c[1] ^ k[0], unsigned(b),
                              unsigned(a >> 32) ^ c[3] ^ k[1], unsigned(a)};
    memcpy(c, next, sizeof c);
    k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
  }
  memcpy(s.out, c, sizeof c);
  for (int at = 0; at < 4 && ++s.counter[at] == 0; ++at) {
  }
  s.next = 0;
}
}  // namespace kc
inline void skipahead(kc_ull count, curandStatePhilox4_32_10* s) {
  const kc_ull whole =
      ((kc_ull(s->counter[1]) << 32) | s->counter[0]) + (count + (s->next & 3)) / 4;
  s->counter[0] = whole, s->counter[1] = whole >> 32;
  if (int rest = (count + (s->next & 3)) % 4) kc::philox(*s), s->next = rest;
}
inline void curand_init(kc_ull seed, kc_ull sequence, kc_ull offset, curandStatePhilox4_32_10* s) {
  *s = {};
  s->key[0] = seed, s->key[1] = seed >> 32;
  s->counter[2] = sequence, s->counter[3] = sequence >> 32;
  skipahead(offset, s);
}
inline unsigned curand(curandStatePhilox4_32_10* s) {
  if (s->next == 4) kc::philox(*s);
  return s->out[s->next++];
}
inline uint4 curand4(curandStatePhilox4_32_10* s) {
  return {curand(s), curand(s), curand(s), curand(s)};
}
inline float curand_uniform(curandStatePhilox4_32_10* s) { return curand(s) * 0x1p-32f + 0x1p-33f; }
inline double curand_uniform_double(curandStatePhilox4_32_10* s) {
  return curand(s) * 0x1p-32 + 0x1p-33;
}
inline float4 curand_uniform4(curandStatePhilox4_32_10* s) {
  return {curand_uniform(s), curand_uniform(s), curand_uniform(s), curand_uniform(s)};
}
inline float2 curand_normal2(curandStatePhilox4_32_10* s) {
  const float u = curand_uniform(s), v = curand_uniform(s) * float(2 * M_PI);
  const float r = ::sqrtf(-2 * ::logf(u));
  return {r * ::sinf(v), r * ::cosf(v)};
}
inline float curand_normal(curandStatePhilox4_32_10* s) {
  if (s->has_normal) return s->has_normal = false, s->normal;
  const float2 made = curand_normal2(s);
  s->has_normal = true, s->normal = made.y;
  return made.x;
}
inline float4 curand_normal4(curandStatePhilox4_32_10* s) {
  const float2 a = curand_normal2(s), b = curand_normal2(s);
  return {a.x, a.y, b.x, b.y};
}
