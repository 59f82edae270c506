// Sixteen lanes, three tiers, the same bits. A kernel is written once over F32x16 / I32x16 / Mask16
// and compiled once a tier (-DSPECFAST_TIER=scalar|avx2|avx512). Everything lives in the tier's
// namespace, so that no inline function compiled for one instruction set is ever linked into
// another. Semantics all tiers share: fma rounds once; max(a, b) = a > b ? a : b (so NaN in a gives
// b); reductions fold lanes i and i + 8, then + 4, + 2, + 1.
#pragma once
#include <cstdint>
#include <cstring>

#ifndef SPECFAST_TIER
#error "compile the tiered kernels with -DSPECFAST_TIER=..."
#endif
#define SPECFAST_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "cpu/simd_avx2.h"
#else
#include "cpu/simd_scalar.h"
#endif

namespace specfast::cpu::SPECFAST_TIER {

SPECFAST_INLINE float bits_to_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
SPECFAST_INLINE uint32_t float_to_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

// The constant x in the type of the first argument: how core/fast_math.h writes a literal.
SPECFAST_INLINE F32x16 splat(F32x16, float x) { return broadcast(x); }
SPECFAST_INLINE I32x16 splat(I32x16, int32_t x) { return broadcast(x); }

// Subnormals are numbers here: clears FTZ and DAZ and restores the caller's MXCSR.
class FloatEnv {
 public:
#if defined(__SSE__)
  FloatEnv() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1f80); }
  ~FloatEnv() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#else
  FloatEnv() {}
#endif
};

}  // namespace specfast::cpu::SPECFAST_TIER
