// simd.h with two 256-bit registers a value.
#pragma once
#include <immintrin.h>

namespace specfast::cpu::SPECFAST_TIER {

struct F32x16 {
  __m256 a, b;
};
struct I32x16 {
  __m256i a, b;
};
struct Mask16 {
  __m256 a, b;  // all ones or all zeros a lane
};

SPECFAST_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

SPECFAST_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SPECFAST_INLINE I32x16 load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
SPECFAST_INLINE void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
SPECFAST_INLINE void store(int32_t* p, I32x16 x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)(p + 8), x.b);
}
SPECFAST_INLINE F32x16 load_first(const float* p, int n) {  // lanes >= n are 0 and not read
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
SPECFAST_INLINE void store_first(float* p, F32x16 x, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), x.a);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.b);
}
SPECFAST_INLINE F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SPECFAST_INLINE I32x16 broadcast(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SPECFAST_INLINE I32x16 iota() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

SPECFAST_INLINE __m256 widen_bf16(const uint16_t* p) {
  __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
SPECFAST_INLINE F32x16 load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
// 32 bf16 stored interleaved (0, 16, 1, 17, ...): lanes 0..15 and 16..31.
SPECFAST_INLINE void load_bf16_panel(const uint16_t* p, F32x16& lo, F32x16& hi) {
  __m256i u = _mm256_loadu_si256((const __m256i*)p);
  __m256i w = _mm256_loadu_si256((const __m256i*)(p + 16));
  __m256i top = _mm256_set1_epi32((int)0xffff0000);
  lo = {_mm256_castsi256_ps(_mm256_slli_epi32(u, 16)),
        _mm256_castsi256_ps(_mm256_slli_epi32(w, 16))};
  hi = {_mm256_castsi256_ps(_mm256_and_si256(u, top)),
        _mm256_castsi256_ps(_mm256_and_si256(w, top))};
}
SPECFAST_INLINE __m256i round_bf16(__m256 x) {
  __m256i u = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  r = _mm256_srli_epi32(r, 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), nan);
}
// Round to nearest even; NaN stays NaN.
SPECFAST_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  __m256i packed = _mm256_packus_epi32(round_bf16(x.a), round_bf16(x.b));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

SPECFAST_INLINE F32x16 operator+(F32x16 x, F32x16 y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
SPECFAST_INLINE F32x16 operator-(F32x16 x, F32x16 y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
SPECFAST_INLINE F32x16 operator*(F32x16 x, F32x16 y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
SPECFAST_INLINE F32x16 operator/(F32x16 x, F32x16 y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
SPECFAST_INLINE F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
SPECFAST_INLINE F32x16 max(F32x16 x, F32x16 y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
SPECFAST_INLINE F32x16 min(F32x16 x, F32x16 y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
SPECFAST_INLINE F32x16 sqrt(F32x16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
SPECFAST_INLINE F32x16 ceil(F32x16 x) { return {_mm256_ceil_ps(x.a), _mm256_ceil_ps(x.b)}; }

#define SPECFAST_I32_BINARY(op, intrinsic)             \
  SPECFAST_INLINE I32x16 op(I32x16 x, I32x16 y) {      \
    return {intrinsic(x.a, y.a), intrinsic(x.b, y.b)}; \
  }
SPECFAST_I32_BINARY(operator+, _mm256_add_epi32)
SPECFAST_I32_BINARY(operator-, _mm256_sub_epi32)
SPECFAST_I32_BINARY(operator*, _mm256_mullo_epi32)
SPECFAST_I32_BINARY(operator&, _mm256_and_si256)
SPECFAST_I32_BINARY(operator|, _mm256_or_si256)
SPECFAST_I32_BINARY(operator^, _mm256_xor_si256)
SPECFAST_I32_BINARY(max, _mm256_max_epi32)
SPECFAST_I32_BINARY(min, _mm256_min_epi32)
#undef SPECFAST_I32_BINARY
template <int N>
SPECFAST_INLINE I32x16 shift_left(I32x16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
SPECFAST_INLINE I32x16 shift_right_logical(I32x16 x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
SPECFAST_INLINE I32x16 shift_right_arithmetic(I32x16 x) {
  return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
SPECFAST_INLINE __m256i mul_high_u32(__m256i x, __m256i y) {
  __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, y), 32);
  __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
  return _mm256_blend_epi32(even, odd, 0xaa);
}
// The upper 32 bits of the unsigned 64-bit product of each lane.
SPECFAST_INLINE I32x16 mul_high_u32(I32x16 x, I32x16 y) {
  return {mul_high_u32(x.a, y.a), mul_high_u32(x.b, y.b)};
}

SPECFAST_INLINE F32x16 bitcast_f32(I32x16 x) {
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
SPECFAST_INLINE I32x16 bitcast_i32(F32x16 x) {
  return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
SPECFAST_INLINE F32x16 to_f32(I32x16 x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
// Both halves are exact, so the one fma rounds as a direct conversion would.
SPECFAST_INLINE __m256 u32_to_f32(__m256i x) {
  __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 16));
  __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)));
  return _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0f), low);
}
SPECFAST_INLINE F32x16 u32_to_f32(I32x16 x) { return {u32_to_f32(x.a), u32_to_f32(x.b)}; }
SPECFAST_INLINE I32x16 truncate_i32(F32x16 x) {
  return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)};
}

#define SPECFAST_F32_COMPARE(name, predicate)                                        \
  SPECFAST_INLINE Mask16 name(F32x16 x, F32x16 y) {                                  \
    return {_mm256_cmp_ps(x.a, y.a, predicate), _mm256_cmp_ps(x.b, y.b, predicate)}; \
  }
SPECFAST_F32_COMPARE(operator<, _CMP_LT_OQ)
SPECFAST_F32_COMPARE(operator<=, _CMP_LE_OQ)
SPECFAST_F32_COMPARE(operator==, _CMP_EQ_OQ)
#undef SPECFAST_F32_COMPARE
SPECFAST_INLINE Mask16 is_nan(F32x16 x) {
  return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
}
SPECFAST_INLINE Mask16 operator<(I32x16 x, I32x16 y) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(y.a, x.a)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.b, x.b))};
}
SPECFAST_INLINE Mask16 operator==(I32x16 x, I32x16 y) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))};
}
SPECFAST_INLINE Mask16 operator&(Mask16 x, Mask16 y) {
  return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)};
}
SPECFAST_INLINE Mask16 operator|(Mask16 x, Mask16 y) {
  return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)};
}
SPECFAST_INLINE Mask16 operator~(Mask16 x) {
  __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  return {_mm256_xor_ps(x.a, ones), _mm256_xor_ps(x.b, ones)};
}
SPECFAST_INLINE uint32_t bits(Mask16 m) {
  return (uint32_t)_mm256_movemask_ps(m.a) | (uint32_t)_mm256_movemask_ps(m.b) << 8;
}
SPECFAST_INLINE __m256 mask_from_byte(uint32_t b) {
  __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i hit = _mm256_and_si256(_mm256_set1_epi32((int)b), bit);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(hit, bit));
}
SPECFAST_INLINE Mask16 mask_from_bits(uint32_t b) {
  return {mask_from_byte(b), mask_from_byte(b >> 8)};
}
SPECFAST_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
SPECFAST_INLINE I32x16 select(Mask16 m, I32x16 yes, I32x16 no) {
  return bitcast_i32(select(m, bitcast_f32(yes), bitcast_f32(no)));
}

SPECFAST_INLINE void transpose_quads(__m256i& a, __m256i& b, __m256i& c, __m256i& d) {
  __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
  __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
  a = _mm256_unpacklo_epi64(ab_low, cd_low);
  b = _mm256_unpackhi_epi64(ab_low, cd_low);
  c = _mm256_unpacklo_epi64(ab_high, cd_high);
  d = _mm256_unpackhi_epi64(ab_high, cd_high);
}
SPECFAST_INLINE __m256i load_two_quads(const char* p, int64_t stride) {
  __m256i r = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)p));
  return _mm256_inserti128_si256(r, _mm_loadu_si128((const __m128i*)(p + stride)), 1);
}
// Lanes 4 q to 4 q + 3 are the 16 bytes at p + q stride.
SPECFAST_INLINE I32x16 load_quads(const char* p, int64_t stride) {
  return {load_two_quads(p, stride), load_two_quads(p + 2 * stride, stride)};
}
// 4x4 transposes within each group of four lanes: row r, lane 4q + j <- row j, lane 4q + r.
SPECFAST_INLINE void transpose_quads(I32x16& a, I32x16& b, I32x16& c, I32x16& d) {
  transpose_quads(a.a, b.a, c.a, d.a);
  transpose_quads(a.b, b.b, c.b, d.b);
}

SPECFAST_INLINE float reduce_add(F32x16 x) {
  __m256 h = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
SPECFAST_INLINE float reduce_max(F32x16 x) {  // exact in any order; no lane may be NaN
  __m256 h = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

}  // namespace specfast::cpu::SPECFAST_TIER
