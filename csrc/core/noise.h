// Gumbel noise from 32 random bits: G = -log(-log(1 - v)), large where v is small, which is where
// fp32 is dense. G lies in [-2.82, 22.88].
#pragma once
#include "core/fast_math.h"
#include "core/philox.h"

namespace specfast {

constexpr float kMaxGumbel = 22.88f;

// What noise belongs to, the token's id apart. Target noise belongs to its position alone, whether
// that is decided plainly, verified or ranked by a drafter.
struct NoiseKey {
  uint64_t seed;
  uint32_t position;
  uint32_t purpose = kNoiseTarget;  // and the node, from bit 8 on
  uint32_t root = 0;                // position of the step's first undecided token
};

// Of one node in one step, so that no draw that was consulted is ever used again. node -1: the
// root.
SPECFAST_HD NoiseKey step_noise(uint64_t seed, uint32_t position, NoisePurpose purpose,
                                int32_t node, uint32_t root) {
  return {seed, position, (uint32_t)purpose | (uint32_t)(node + 1) << 8, root};
}

// The words of target ids 4 q .. 4 q + 3.
template <class Words>
SPECFAST_HD PhiloxBlock<Words> keyed_noise(Words q, const NoiseKey& k) {
  Words purpose = splat(q, k.purpose), position = splat(q, k.position), root = splat(q, k.root);
  return philox<Words>({q, purpose, position, root}, k.seed);
}

// v in [2^-33, 1 - 2^-24] from r32 (uint32_t, or I32x16 lanes).
template <class Words>
SPECFAST_HD auto uniform(Words r32) {
  auto r = u32_to_f32(r32);
  return min(fma(r, splat(r, 0x1p-32f), splat(r, 0x1p-33f)), splat(r, 1.0f - 0x1p-24f));
}

// Whether the coin of this key falls for what has probability h: always at 1, never at 0.
SPECFAST_HD bool coin_falls(const NoiseKey& k, double h) {
  return (double)uniform(keyed_noise<uint32_t>(0u, k).x0) < h;
}

template <class T>
SPECFAST_HD T gumbel(T v) {
  T zero = splat(v, 0.0f);
  return zero - log(zero - log1m(v));
}

// Of one target id. Its word is selected, not indexed: a GPU would keep the four in memory.
SPECFAST_HD float uniform_of_id(const NoiseKey& k, uint32_t id) {
  PhiloxBlock<uint32_t> block = keyed_noise<uint32_t>(id / 4, k);
  uint32_t low = id & 1 ? block.x1 : block.x0, high = id & 1 ? block.x3 : block.x2;
  return uniform(id & 2 ? high : low);
}
SPECFAST_HD float gumbel_of_id(const NoiseKey& k, uint32_t id) {
  return gumbel(uniform_of_id(k, id));
}

// At least gumbel(v), for a quarter of its cost: -log(1 - v) >= v, and a float's bits read as an
// integer bound its log2 from below.
template <class T>
SPECFAST_HD T gumbel_bound(T v) {
  return fma(to_f32(bitcast_i32(v)), splat(v, -0x1p-23f * kLn2), splat(v, 127.0f * kLn2 + 1e-3f));
}

}  // namespace specfast
