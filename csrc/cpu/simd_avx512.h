// simd.h with one 512-bit register a value.
#pragma once
#include <immintrin.h>

namespace specfast::cpu::SPECFAST_TIER {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 v;
};

SPECFAST_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
SPECFAST_INLINE I32x16 load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
SPECFAST_INLINE void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
SPECFAST_INLINE void store(int32_t* p, I32x16 a) { _mm512_storeu_si512(p, a.v); }
SPECFAST_INLINE F32x16 load_first(const float* p, int n) {  // lanes >= n are 0 and not read
  return {_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)};
}
SPECFAST_INLINE void store_first(float* p, F32x16 a, int n) {
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v);
}
SPECFAST_INLINE F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
SPECFAST_INLINE I32x16 broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
SPECFAST_INLINE I32x16 iota() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

SPECFAST_INLINE F32x16 load_bf16(const uint16_t* p) {
  __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
// 32 bf16 stored interleaved (0, 16, 1, 17, ...): lanes 0..15 and 16..31.
SPECFAST_INLINE void load_bf16_panel(const uint16_t* p, F32x16& lo, F32x16& hi) {
  __m512i w = _mm512_loadu_si512(p);
  lo.v = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  hi.v = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
}
// Round to nearest even; NaN stays NaN.
SPECFAST_INLINE void store_bf16(uint16_t* p, F32x16 a) {
  __m512i u = _mm512_castps_si512(a.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  r = _mm512_srli_epi32(r, 16);
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  r = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
}

SPECFAST_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
SPECFAST_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
SPECFAST_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
SPECFAST_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
SPECFAST_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
SPECFAST_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
SPECFAST_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
SPECFAST_INLINE F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
SPECFAST_INLINE F32x16 ceil(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)};
}

SPECFAST_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
SPECFAST_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
SPECFAST_INLINE I32x16 operator*(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
SPECFAST_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
SPECFAST_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
SPECFAST_INLINE I32x16 operator^(I32x16 a, I32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N>
SPECFAST_INLINE I32x16 shift_left(I32x16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
SPECFAST_INLINE I32x16 shift_right_logical(I32x16 a) {
  return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
SPECFAST_INLINE I32x16 shift_right_arithmetic(I32x16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}
SPECFAST_INLINE I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
SPECFAST_INLINE I32x16 min(I32x16 a, I32x16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
// The upper 32 bits of the unsigned 64-bit product of each lane.
SPECFAST_INLINE I32x16 mul_high_u32(I32x16 a, I32x16 b) {
  __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, b.v), 32);
  __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {_mm512_mask_mov_epi32(even, 0xaaaa, odd)};
}

SPECFAST_INLINE F32x16 bitcast_f32(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
SPECFAST_INLINE I32x16 bitcast_i32(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
SPECFAST_INLINE F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
SPECFAST_INLINE F32x16 u32_to_f32(I32x16 a) { return {_mm512_cvtepu32_ps(a.v)}; }
SPECFAST_INLINE I32x16 truncate_i32(F32x16 a) { return {_mm512_cvttps_epi32(a.v)}; }

SPECFAST_INLINE Mask16 operator<(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
SPECFAST_INLINE Mask16 operator<=(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)};
}
SPECFAST_INLINE Mask16 operator==(F32x16 a, F32x16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)};
}
SPECFAST_INLINE Mask16 is_nan(F32x16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
SPECFAST_INLINE Mask16 operator<(I32x16 a, I32x16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
SPECFAST_INLINE Mask16 operator==(I32x16 a, I32x16 b) {
  return {_mm512_cmpeq_epi32_mask(a.v, b.v)};
}
SPECFAST_INLINE Mask16 operator&(Mask16 a, Mask16 b) { return {(__mmask16)(a.v & b.v)}; }
SPECFAST_INLINE Mask16 operator|(Mask16 a, Mask16 b) { return {(__mmask16)(a.v | b.v)}; }
SPECFAST_INLINE Mask16 operator~(Mask16 a) { return {(__mmask16)~a.v}; }
SPECFAST_INLINE uint32_t bits(Mask16 m) { return m.v; }
SPECFAST_INLINE Mask16 mask_from_bits(uint32_t b) { return {(__mmask16)b}; }
SPECFAST_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  return {_mm512_mask_mov_ps(no.v, m.v, yes.v)};
}
SPECFAST_INLINE I32x16 select(Mask16 m, I32x16 yes, I32x16 no) {
  return {_mm512_mask_mov_epi32(no.v, m.v, yes.v)};
}

// Lanes 4 q to 4 q + 3 are the 16 bytes at p + q stride.
SPECFAST_INLINE I32x16 load_quads(const char* p, int64_t stride) {
  __m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)p));
  r = _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i*)(p + stride)), 1);
  r = _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i*)(p + 2 * stride)), 2);
  return {_mm512_inserti32x4(r, _mm_loadu_si128((const __m128i*)(p + 3 * stride)), 3)};
}
// 4x4 transposes within each group of four lanes: row r, lane 4q + j <- row j, lane 4q + r.
SPECFAST_INLINE void transpose_quads(I32x16& a, I32x16& b, I32x16& c, I32x16& d) {
  __m512i ab_low = _mm512_unpacklo_epi32(a.v, b.v), ab_high = _mm512_unpackhi_epi32(a.v, b.v);
  __m512i cd_low = _mm512_unpacklo_epi32(c.v, d.v), cd_high = _mm512_unpackhi_epi32(c.v, d.v);
  a.v = _mm512_unpacklo_epi64(ab_low, cd_low);
  b.v = _mm512_unpackhi_epi64(ab_low, cd_low);
  c.v = _mm512_unpacklo_epi64(ab_high, cd_high);
  d.v = _mm512_unpackhi_epi64(ab_high, cd_high);
}

SPECFAST_INLINE float reduce_add(F32x16 a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
SPECFAST_INLINE float reduce_max(F32x16 a) {  // exact in any order; no lane may be NaN
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

}  // namespace specfast::cpu::SPECFAST_TIER
