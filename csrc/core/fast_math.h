// Elementary functions as fixed sequences of IEEE operations: the same bits on every SIMD tier and
// on CUDA. Each is written once over T: float, or F32x16, whose operations are found by argument
// type in its own namespace. Nothing here may be contracted or approximated: fma where it is
// written, division and square root as IEEE has them.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/macros.h"

namespace specfast {

constexpr float kLog2e = 0x1.715476p+0f;
constexpr float kLn2 = 0x1.62e43p-1f;

// --- what simd.h gives F32x16, for float ---
SPECFAST_HD float splat(float, float x) { return x; }
SPECFAST_HD int32_t splat(int32_t, int32_t x) { return x; }
SPECFAST_HD float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SPECFAST_HD float ceil(float a) { return __builtin_ceilf(a); }
SPECFAST_HD float max(float a, float b) { return a > b ? a : b; }
SPECFAST_HD float min(float a, float b) { return a < b ? a : b; }
// These hide everybody else's: a double or an integer would come back rounded.
template <class A, class B>
void max(A, B) = delete;
template <class A, class B>
void min(A, B) = delete;
SPECFAST_HD float select(bool m, float yes, float no) { return m ? yes : no; }
SPECFAST_HD float to_f32(int32_t a) { return (float)a; }
SPECFAST_HD int32_t bitcast_i32(float a) {
  int32_t i;
  memcpy(&i, &a, 4);
  return i;
}
SPECFAST_HD float bitcast_f32(int32_t a) {
  float f;
  memcpy(&f, &a, 4);
  return f;
}
SPECFAST_HD uint32_t splat(uint32_t, uint32_t x) { return x; }
SPECFAST_HD float u32_to_f32(uint32_t a) { return (float)a; }
SPECFAST_HD uint32_t mul_high_u32(uint32_t a, uint32_t b) {
  return (uint32_t)(((uint64_t)a * b) >> 32);
}
template <int N>
SPECFAST_HD int32_t shift_left(int32_t a) {
  return (int32_t)((uint32_t)a << N);
}
template <int N>
SPECFAST_HD int32_t shift_right_arithmetic(int32_t a) {
  return a >> N;
}

// 2^f for f in [-1, 0]: monotone, exactly 1 at 0 and 0.5 at -1, relative error <= 2^-23.6. A
// polynomial in f + 0.5, so that the rounding of its last steps stays below the function's own
// step.
template <class T>
SPECFAST_HD T exp2_poly(T f) {
  T g = f + splat(f, 0.5f);
  T r = splat(f, 0x1.c7228cp-14f);
  r = fma(r, g, splat(f, 0x1.f0c584p-11f));
  r = fma(r, g, splat(f, 0x1.bdbab8p-8f));
  r = fma(r, g, splat(f, 0x1.418298p-5f));
  r = fma(r, g, splat(f, 0x1.5be298p-3f));
  r = fma(r, g, splat(f, 0x1.f5e464p-2f));
  return fma(r, g, splat(f, 0x1.6a09e6p-1f));
}

// 2^e for an integer-valued e <= 127; 0 for e < -126, -inf and NaN. The sum puts e + 127 in the low
// bits of a float's mantissa; the shift makes it the exponent.
template <class T>
SPECFAST_HD T pow2i(T e) {
  T biased = max(e, splat(e, -127.0f)) + splat(e, 8388608.0f + 127.0f);
  return bitcast_f32(shift_left<23>(bitcast_i32(biased)));
}

// 2^y for y <= 127; 0 below -126.
template <class T>
SPECFAST_HD T exp2(T y) {
  y = max(splat(y, -150.0f), y);  // this way round a NaN stays NaN
  T n = ceil(y);
  return exp2_poly(y - n) * pow2i(n);
}

// e^x for x <= 88.
template <class T>
SPECFAST_HD T exp(T x) {
  return exp2(x * splat(x, kLog2e));
}

// log(1 + f) + e ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1].
template <class T>
SPECFAST_HD T log_reduced(T f, T e) {
  T p = splat(f, 0x1.645ebp-4f);
  p = fma(p, f, splat(f, -0x1.2432b8p-3f));
  p = fma(p, f, splat(f, 0x1.317458p-3f));
  p = fma(p, f, splat(f, -0x1.53824ap-3f));
  p = fma(p, f, splat(f, 0x1.98d7f2p-3f));
  p = fma(p, f, splat(f, -0x1.000382p-2f));
  p = fma(p, f, splat(f, 0x1.5556d8p-2f));
  T square = f * f;
  T tail = f * square * p;
  tail = fma(e, splat(f, -0x1.bd0106p-13f), tail);  // ln 2 less the short constant below
  tail = fma(splat(f, -0.5f), square, tail);
  return fma(e, splat(f, 0x1.63p-1f), f + tail);  // e times 0.693359375 is exact
}

// The exponent that brings x into [sqrt(1/2), sqrt(2)).
template <class T>
SPECFAST_HD auto log_exponent(T x) {
  auto bits = bitcast_i32(x);
  return shift_right_arithmetic<23>(bits - splat(bits, 0x3f3504f3));
}

// log(x) for x positive, finite and not subnormal.
template <class T>
SPECFAST_HD T log(T x) {
  auto e = log_exponent(x);
  T m = bitcast_f32(bitcast_i32(x) - shift_left<23>(e));
  return log_reduced(m - splat(x, 1.0f), to_f32(e));
}

// log(1 - v) for v in [0, 1 - 2^-24]; small v keep their relative precision.
template <class T>
SPECFAST_HD T log1m(T v) {
  auto e = log_exponent(splat(v, 1.0f) - v);
  auto bias = splat(e, 127);
  T scale = bitcast_f32(shift_left<23>(bias - e));
  // (1 - v) 2^-e - 1, rounded once.
  T f = fma(splat(v, 0.0f) - v, scale, scale - splat(v, 1.0f));
  return log_reduced(f, to_f32(e));
}

template <class T>
SPECFAST_HD T abs(T x) {
  return max(x, splat(x, 0.0f) - x);
}

// x / (1 + e^-x); from e^-|x|, so that nothing overflows.
template <class T>
SPECFAST_HD T silu(T x) {
  T one = splat(x, 1.0f);
  T t = exp2(abs(x) * splat(x, -kLog2e));
  return x * select(x < splat(x, 0.0f), t, one) / (one + t);
}

template <class T>
SPECFAST_HD T tanh(T x) {
  T one = splat(x, 1.0f), zero = splat(x, 0.0f);
  T a = abs(x);
  T t = exp2(a * splat(x, -2.0f * kLog2e));
  T big = (one - t) / (one + t);
  T square = x * x;
  T p = splat(x, 0x1.1a7c1p-6f);
  p = fma(p, square, splat(x, -0x1.b28c78p-5f));
  p = fma(p, square, splat(x, 0x1.10e9fcp-3f));
  p = fma(p, square, splat(x, -0x1.5554d6p-2f));
  T small = fma(x * square, p, x);  // 1 - t would cancel
  return select(a < splat(x, 0.5f), small, select(x < zero, zero - big, big));
}

}  // namespace specfast
