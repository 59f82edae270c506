// Writes into the cache.
#pragma once
#include "core/paged_kv.h"
#include "cpu/simd.h"
#include "params.h"

namespace specfast::cpu::SPECFAST_TIER {

SPECFAST_INLINE void store_element(float* p, F32x16 x) { store(p, x); }
SPECFAST_INLINE void store_element(uint16_t* p, F32x16 x) { store_bf16(p, x); }

// Stores x[0, n), 0 for what is not finite; returns kRowNonFiniteKv if anything was not.
template <class Element>
SPECFAST_INLINE int32_t store_finite(Element* out, const float* x, int64_t n) {
  uint32_t all_finite = 0xffff;
  for (int64_t d = 0; d < n; d += 16) {
    F32x16 value = load(x + d);
    I32x16 magnitude = bitcast_i32(value) & broadcast((int32_t)0x7fffffff);
    Mask16 finite = magnitude < broadcast(kNonFiniteBits<Element>);
    store_element(out + d, select(finite, value, broadcast(0.0f)));
    all_finite &= bits(finite);
  }
  return all_finite == 0xffff ? kRowOk : kRowNonFiniteKv;
}

// The cache's elements from a slot's K (plane 0) or V (plane 1) on.
template <class Element>
SPECFAST_INLINE Element* slot_data(const KvLayer& cache, int64_t plane, int64_t slot) {
  int64_t num_slots = cache.num_blocks * cache.block_size;
  return static_cast<Element*>(cache.data) +
         kv_offset(num_slots, cache.num_kv_heads * cache.head_dim, plane, slot);
}

}  // namespace specfast::cpu::SPECFAST_TIER
