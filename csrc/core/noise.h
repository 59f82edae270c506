// Gumbel noise from 32 random bits: G = -log(-log(1 - v)), large where v is small, which is where
// fp32 is dense. G lies in [-2.82, 22.88].
#pragma once
#include "core/fast_math.h"
#include "core/philox.h"

namespace specfast {

constexpr float kMaxGumbel = 22.88f;

// The words of target ids 4 q .. 4 q + 3: the noise of a position belongs to it alone, whether it
// is decided plainly, verified or drafted.
template <class Words>
SPECFAST_HD PhiloxBlock<Words> target_noise(Words q, uint64_t seed, uint32_t position) {
  Words target = splat(q, (uint32_t)kNoiseTarget), root = splat(q, 0u);
  return philox<Words>({q, target, splat(q, position), root}, seed);
}

// v in [2^-33, 1 - 2^-24] from r32 (uint32_t, or I32x16 lanes).
template <class Words>
SPECFAST_HD auto uniform(Words r32) {
  auto r = u32_to_f32(r32);
  return min(fma(r, splat(r, 0x1p-32f), splat(r, 0x1p-33f)), splat(r, 1.0f - 0x1p-24f));
}

template <class T>
SPECFAST_HD T gumbel(T v) {
  T zero = splat(v, 0.0f);
  return zero - log(zero - log1m(v));
}

// At least gumbel(v), for a quarter of its cost: -log(1 - v) >= v, and a float's bits read as an
// integer bound its log2 from below.
template <class T>
SPECFAST_HD T gumbel_bound(T v) {
  return fma(to_f32(bitcast_i32(v)), splat(v, -0x1p-23f * kLn2), splat(v, 127.0f * kLn2 + 1e-3f));
}

}  // namespace specfast
