// Where things lie in a paged cache [2, num_blocks, block_size, num_kv_heads, head_dim]; int64
// before any multiply.
#pragma once
#include <cstdint>

#include "core/macros.h"

namespace specfast {

// The slot of a logical position of the sequence that owns this row of block_tables.
SPECFAST_HD int64_t slot_of(const int32_t* block_table, int64_t block_size, int64_t position) {
  return block_table[position / block_size] * block_size + position % block_size;
}

// The element at which a slot's K (plane 0) or V (plane 1) begins; a token has token_size elements.
SPECFAST_HD int64_t kv_offset(int64_t num_slots, int64_t token_size, int64_t plane, int64_t slot) {
  return (plane * num_slots + slot) * token_size;
}

// From these bits on, sign aside, a float is not finite once stored as an Element: bf16 rounds to
// infinity from half an ulp above its largest number.
template <class Element>
constexpr int32_t kNonFiniteBits = sizeof(Element) == 2 ? 0x7f7f8000 : 0x7f800000;

}  // namespace specfast
