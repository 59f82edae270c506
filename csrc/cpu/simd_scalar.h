// simd.h in plain C++: the tier that any CPU runs and that the others are compared with.
#pragma once
#include <cmath>

namespace specfast::cpu::SPECFAST_TIER {

struct F32x16 {
  float v[16];
};
struct I32x16 {
  int32_t v[16];
};
struct Mask16 {
  uint32_t v;
};

#define SPECFAST_LANES for (int i = 0; i < 16; i++)

SPECFAST_INLINE float scalar_cast_f32(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
SPECFAST_INLINE F32x16 load(const float* p) {
  F32x16 r;
  memcpy(r.v, p, 64);
  return r;
}
SPECFAST_INLINE I32x16 load(const int32_t* p) {
  I32x16 r;
  memcpy(r.v, p, 64);
  return r;
}
SPECFAST_INLINE void store(float* p, F32x16 a) { memcpy(p, a.v, 64); }
SPECFAST_INLINE void store(int32_t* p, I32x16 a) { memcpy(p, a.v, 64); }
SPECFAST_INLINE F32x16 load_first(const float* p, int n) {  // lanes >= n are 0 and not read
  F32x16 r{};
  for (int i = 0; i < n && i < 16; i++) r.v[i] = p[i];
  return r;
}
SPECFAST_INLINE void store_first(float* p, F32x16 a, int n) {
  for (int i = 0; i < n && i < 16; i++) p[i] = a.v[i];
}
SPECFAST_INLINE F32x16 broadcast(float x) {
  F32x16 r;
  SPECFAST_LANES r.v[i] = x;
  return r;
}
SPECFAST_INLINE I32x16 broadcast(int32_t x) {
  I32x16 r;
  SPECFAST_LANES r.v[i] = x;
  return r;
}
SPECFAST_INLINE I32x16 iota() {
  I32x16 r;
  SPECFAST_LANES r.v[i] = i;
  return r;
}

SPECFAST_INLINE F32x16 load_bf16(const uint16_t* p) {
  F32x16 r;
  SPECFAST_LANES r.v[i] = scalar_cast_f32((uint32_t)p[i] << 16);
  return r;
}
// 32 bf16 stored interleaved (0, 16, 1, 17, ...): lanes 0..15 and 16..31.
SPECFAST_INLINE void load_bf16_panel(const uint16_t* p, F32x16& lo, F32x16& hi) {
  SPECFAST_LANES lo.v[i] = scalar_cast_f32((uint32_t)p[2 * i] << 16);
  SPECFAST_LANES hi.v[i] = scalar_cast_f32((uint32_t)p[2 * i + 1] << 16);
}
// Round to nearest even; NaN stays NaN.
SPECFAST_INLINE void store_bf16(uint16_t* p, F32x16 a) {
  SPECFAST_LANES {
    uint32_t u;
    memcpy(&u, &a.v[i], 4);
    p[i] = a.v[i] != a.v[i] ? 0x7fc0 : (uint16_t)((u + ((u >> 16) & 1) + 0x7fff) >> 16);
  }
}

#define SPECFAST_LANEWISE(Type, op, Argument, expression) \
  SPECFAST_INLINE Type op(Argument a, Argument b) {       \
    Type r;                                               \
    SPECFAST_LANES r.v[i] = (expression);                 \
    return r;                                             \
  }
SPECFAST_LANEWISE(F32x16, operator+, F32x16, a.v[i] + b.v[i])
SPECFAST_LANEWISE(F32x16, operator-, F32x16, a.v[i] - b.v[i])
SPECFAST_LANEWISE(F32x16, operator*, F32x16, a.v[i] * b.v[i])
SPECFAST_LANEWISE(F32x16, operator/, F32x16, a.v[i] / b.v[i])
SPECFAST_LANEWISE(F32x16, max, F32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
SPECFAST_LANEWISE(F32x16, min, F32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
SPECFAST_LANEWISE(I32x16, operator+, I32x16, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]))
SPECFAST_LANEWISE(I32x16, operator-, I32x16, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i]))
SPECFAST_LANEWISE(I32x16, operator*, I32x16, (int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i]))
SPECFAST_LANEWISE(I32x16, operator&, I32x16, a.v[i] & b.v[i])
SPECFAST_LANEWISE(I32x16, operator|, I32x16, a.v[i] | b.v[i])
SPECFAST_LANEWISE(I32x16, operator^, I32x16, a.v[i] ^ b.v[i])
SPECFAST_LANEWISE(I32x16, max, I32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
SPECFAST_LANEWISE(I32x16, min, I32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
// The upper 32 bits of the unsigned 64-bit product of each lane.
SPECFAST_LANEWISE(I32x16, mul_high_u32, I32x16,
                  (int32_t)(((uint64_t)(uint32_t)a.v[i] * (uint32_t)b.v[i]) >> 32))
#undef SPECFAST_LANEWISE
SPECFAST_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  F32x16 r;
  SPECFAST_LANES r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return r;
}
SPECFAST_INLINE F32x16 sqrt(F32x16 a) {
  SPECFAST_LANES a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}
SPECFAST_INLINE F32x16 ceil(F32x16 a) {
  SPECFAST_LANES a.v[i] = __builtin_ceilf(a.v[i]);
  return a;
}
template <int N>
SPECFAST_INLINE I32x16 shift_left(I32x16 a) {
  SPECFAST_LANES a.v[i] = (int32_t)((uint32_t)a.v[i] << N);
  return a;
}
template <int N>
SPECFAST_INLINE I32x16 shift_right_logical(I32x16 a) {
  SPECFAST_LANES a.v[i] = (int32_t)((uint32_t)a.v[i] >> N);
  return a;
}
template <int N>
SPECFAST_INLINE I32x16 shift_right_arithmetic(I32x16 a) {
  SPECFAST_LANES a.v[i] = a.v[i] >> N;
  return a;
}

SPECFAST_INLINE F32x16 bitcast_f32(I32x16 a) {
  F32x16 r;
  memcpy(r.v, a.v, 64);
  return r;
}
SPECFAST_INLINE I32x16 bitcast_i32(F32x16 a) {
  I32x16 r;
  memcpy(r.v, a.v, 64);
  return r;
}
SPECFAST_INLINE F32x16 to_f32(I32x16 a) {
  F32x16 r;
  SPECFAST_LANES r.v[i] = (float)a.v[i];
  return r;
}
SPECFAST_INLINE F32x16 u32_to_f32(I32x16 a) {
  F32x16 r;
  SPECFAST_LANES r.v[i] = (float)(uint32_t)a.v[i];
  return r;
}
SPECFAST_INLINE I32x16 truncate_i32(F32x16 a) {  // out of range and NaN: INT32_MIN, as x86 gives
  I32x16 r;
  SPECFAST_LANES r.v[i] =
      a.v[i] >= -2147483648.0f && a.v[i] < 2147483648.0f ? (int32_t)a.v[i] : (int32_t)0x80000000u;
  return r;
}

#define SPECFAST_COMPARE(name, Argument, expression)    \
  SPECFAST_INLINE Mask16 name(Argument a, Argument b) { \
    uint32_t m = 0;                                     \
    SPECFAST_LANES m |= (uint32_t)(expression) << i;    \
    return {m};                                         \
  }
SPECFAST_COMPARE(operator<, F32x16, a.v[i] < b.v[i])
SPECFAST_COMPARE(operator<=, F32x16, a.v[i] <= b.v[i])
SPECFAST_COMPARE(operator==, F32x16, a.v[i] == b.v[i])
SPECFAST_COMPARE(operator<, I32x16, a.v[i] < b.v[i])
SPECFAST_COMPARE(operator==, I32x16, a.v[i] == b.v[i])
#undef SPECFAST_COMPARE
SPECFAST_INLINE Mask16 is_nan(F32x16 a) {
  uint32_t m = 0;
  SPECFAST_LANES m |= (uint32_t)(a.v[i] != a.v[i]) << i;
  return {m};
}
SPECFAST_INLINE Mask16 operator&(Mask16 a, Mask16 b) { return {a.v & b.v}; }
SPECFAST_INLINE Mask16 operator|(Mask16 a, Mask16 b) { return {a.v | b.v}; }
SPECFAST_INLINE Mask16 operator~(Mask16 a) { return {~a.v & 0xffffu}; }
SPECFAST_INLINE uint32_t bits(Mask16 m) { return m.v; }
SPECFAST_INLINE Mask16 mask_from_bits(uint32_t b) { return {b & 0xffffu}; }
SPECFAST_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  SPECFAST_LANES no.v[i] = m.v >> i & 1 ? yes.v[i] : no.v[i];
  return no;
}
SPECFAST_INLINE I32x16 select(Mask16 m, I32x16 yes, I32x16 no) {
  SPECFAST_LANES no.v[i] = m.v >> i & 1 ? yes.v[i] : no.v[i];
  return no;
}

// Lanes 4 q to 4 q + 3 are the 16 bytes at p + q stride.
SPECFAST_INLINE I32x16 load_quads(const char* p, int64_t stride) {
  I32x16 r;
  for (int q = 0; q < 4; q++) memcpy(r.v + 4 * q, p + q * stride, 16);
  return r;
}
// 4x4 transposes within each group of four lanes: row r, lane 4q + j <- row j, lane 4q + r.
SPECFAST_INLINE void transpose_quads(I32x16& a, I32x16& b, I32x16& c, I32x16& d) {
  const I32x16 rows[4] = {a, b, c, d};
  SPECFAST_LANES {
    int q = i / 4 * 4;
    a.v[i] = rows[i % 4].v[q];
    b.v[i] = rows[i % 4].v[q + 1];
    c.v[i] = rows[i % 4].v[q + 2];
    d.v[i] = rows[i % 4].v[q + 3];
  }
}

SPECFAST_INLINE float reduce_add(F32x16 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] = a.v[i] + a.v[i + half];
  return a.v[0];
}
SPECFAST_INLINE float reduce_max(F32x16 a) {  // exact in any order; no lane may be NaN
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  return a.v[0];
}
#undef SPECFAST_LANES

}  // namespace specfast::cpu::SPECFAST_TIER
