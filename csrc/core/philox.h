// Philox4x32-10 (Salmon et al. 2011): four 32-bit words from a 128-bit counter and a 64-bit key.
#pragma once
#include <cstdint>

#include "core/fast_math.h"

namespace specfast {

// What a draw is for; bits 0-7 of counter word 1.
enum NoisePurpose : uint32_t {
  kNoiseTarget = 0,
  kNoiseAccept = 1,
  kNoiseResidual = 2,
  kNoiseDraft = 3,
  kNoiseFork = 4,
};

// Words: uint32_t, or I32x16 for sixteen counters at once.
template <class Words>
struct PhiloxBlock {
  Words x0, x1, x2, x3;
};

template <class Words>
SPECFAST_HD PhiloxBlock<Words> philox(PhiloxBlock<Words> c, uint64_t key) {
  const Words m0 = splat(c.x0, 0xD2511F53u), m1 = splat(c.x0, 0xCD9E8D57u);
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; round++) {
    Words high0 = mul_high_u32(m0, c.x0), low0 = m0 * c.x0;
    Words high1 = mul_high_u32(m1, c.x2), low1 = m1 * c.x2;
    c = {high1 ^ c.x1 ^ splat(c.x0, k0), low1, high0 ^ c.x3 ^ splat(c.x0, k1), low0};
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace specfast
