// Values that index the paged cache are checked at the door too: a kernel never leaves the cache.
#pragma once
#include "checks.h"

namespace specfast::bind {

constexpr int64_t kMaxHeadDim = 256;

inline KvLayer paged_layer(const Tensor& cache) {
  KvLayer layer = kv_layer(cache, "kv_cache");
  int64_t dim = layer.head_dim;
  STD_TORCH_CHECK(dim > 0 && dim % 16 == 0 && dim <= kMaxHeadDim,
                  "kv_cache: head_dim must be a multiple of 16 up to 256, got ", dim);
  STD_TORCH_CHECK(layer.block_size > 0 && layer.num_kv_heads > 0,
                  "kv_cache: block_size and num_kv_heads must not be 0, got ", shape_text(cache));
  return layer;
}

// One slot a row, -1 for a row that stores nothing.
inline const int64_t* row_slots(const Tensor& t, int64_t rows, const KvLayer& cache) {
  const int64_t* slots = i64_in(t, "slots", {rows});
  int64_t num_slots = cache.num_blocks * cache.block_size;
  for (int64_t row = 0; row < rows; row++)
    STD_TORCH_CHECK(slots[row] >= -1 && slots[row] < num_slots, "slots: row ", row, " wants slot ",
                    slots[row], " of a cache of ", num_slots, "; -1 stores nothing");
  return slots;
}

// The blocks that hold logical positions [begin, end) of sequence b must exist.
inline void check_blocks(const int32_t* block_tables, int64_t max_blocks, int64_t num_blocks,
                         int64_t block_size, int64_t b, int64_t begin, int64_t end) {
  STD_TORCH_CHECK(0 <= begin && end <= max_blocks * block_size, "block_tables: sequence ", b,
                  " uses positions ", begin, " to ", end, ", its table holds ",
                  max_blocks * block_size);
  for (int64_t i = begin / block_size; i * block_size < end; i++) {
    int32_t block = block_tables[b * max_blocks + i];
    STD_TORCH_CHECK(block >= 0 && block < num_blocks, "block_tables: entry ", i, " of sequence ", b,
                    " is block ", block, " of a cache of ", num_blocks);
  }
}

}  // namespace specfast::bind
