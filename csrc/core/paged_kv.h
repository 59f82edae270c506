// Where things lie in a paged cache; int64 before any multiply.
#pragma once
#include "core/macros.h"
#include "params.h"

namespace specfast {

// The slot of a logical position of the sequence that owns this row of block_tables.
SPECFAST_HD int64_t slot_of(const int32_t* block_table, int64_t block_size, int64_t position) {
  return block_table[position / block_size] * block_size + position % block_size;
}

SPECFAST_HD int64_t num_slots(const KvLayer& cache) { return cache.num_blocks * cache.block_size; }

// The element at which one head of a slot's K (plane 0) or V (plane 1) begins.
SPECFAST_HD int64_t kv_offset(const KvLayer& cache, int64_t plane, int64_t slot, int64_t head) {
  return ((plane * num_slots(cache) + slot) * cache.num_kv_heads + head) * cache.head_dim;
}

}  // namespace specfast
