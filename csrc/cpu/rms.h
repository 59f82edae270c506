// The scale of an RMS norm, the same operations for a hidden row and for one head of q or k.
#pragma once
#include "cpu/simd.h"

namespace specfast::cpu::SPECFAST_TIER {

// squares: lane i holds the sum of the squares of elements i, i + 16, ...
SPECFAST_INLINE F32x16 inverse_rms(F32x16 squares, int64_t n, float eps) {
  float mean = reduce_add(squares) / (float)n;
  return broadcast(1.0f) / sqrt(broadcast(mean + eps));
}

}  // namespace specfast::cpu::SPECFAST_TIER
