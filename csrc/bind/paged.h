// Values that index the paged cache are checked at the door too: a kernel never leaves the cache.
#pragma once
#include "door.h"

namespace specfast::bind {

// cache: [2, num_blocks, block_size, num_kv_heads, head_dim].
inline KvLayer paged_layer(Door& door, const Tensor& cache) {
  door.check_device(cache, "kv_cache");
  check_shape(cache, "kv_cache", {2, -1, -1, -1, -1});
  check_contiguous(cache, "kv_cache");
  KvLayer layer{output<void>(cache), cache.size(1), cache.size(2),
                cache.size(3),       cache.size(4), storage_dtype(cache, "kv_cache")};
  int64_t dim = layer.head_dim;
  STD_TORCH_CHECK(dim > 0 && dim % 16 == 0 && dim <= kMaxHeadDim,
                  "kv_cache: head_dim must be a multiple of 16 up to ", kMaxHeadDim, ", got ", dim);
  STD_TORCH_CHECK(layer.block_size > 0 && layer.num_kv_heads > 0,
                  "kv_cache: block_size and num_kv_heads must not be 0, got ", shape_text(cache));
  return layer;
}

// One slot a row, -1 for a row that stores nothing.
inline const int64_t* row_slots(Door& door, const Tensor& t, int64_t rows, const KvLayer& cache) {
  const int64_t* slots = door.i64_in(t, "slots", {rows});
  if (door.on_cuda()) return slots;
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
