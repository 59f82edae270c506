// The functions of core/, evaluated lane by lane on one SIMD tier.
#pragma once
#include <cstdint>

#define SPECFAST_CORE_MATH(X) \
  X(exp2_poly)                \
  X(pow2i)                    \
  X(exp2)                     \
  X(log)                      \
  X(log1m)                    \
  X(silu)                     \
  X(tanh)                     \
  X(gumbel)                   \
  X(gumbel_bound)

namespace specfast::cpu {

#define SPECFAST_ID(name) name,
enum class CoreMath { SPECFAST_CORE_MATH(SPECFAST_ID) };
#undef SPECFAST_ID

// n a multiple of 16.
#define SPECFAST_TIERED_TEST(tier)                                                                 \
  namespace tier {                                                                                 \
  void core_math(CoreMath function, const float* x, float* out, int64_t n);                        \
  void uniforms(const uint32_t* words, float* out, int64_t n);                                     \
  void sort_keys(const float* x, int32_t* out, int64_t n);                                         \
  /* out [n, 4]: the words of counters {c, 0x4103, position, 9} */                                 \
  void noise_words(uint64_t seed, uint32_t position, const uint32_t* c, uint32_t* out, int64_t n); \
  }
SPECFAST_TIERED_TEST(scalar)
SPECFAST_TIERED_TEST(avx2)
SPECFAST_TIERED_TEST(avx512)
#undef SPECFAST_TIERED_TEST

}  // namespace specfast::cpu
