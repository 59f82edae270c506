// Which rows a block of threads attends and what they see. A packed row is one query head of one
// token; packed row x of a sequence and kv head is head x % group of token x / group. Nobody has
// looked at the values that index here: what lies outside the tables is seen by none.
#pragma once
#include "core/tree.h"
#include "cuda/launch.cuh"
#include "params.h"

namespace specfast::cuda {

constexpr int kTile = 64;
constexpr int kSplit = 512;

struct PackedRow {
  int32_t token, head;  // of q; token -1: no row
  int32_t begin, end;   // the logical positions that it sees
  int32_t node_base;
  int32_t gathered;  // from this position on its columns are not in their own slots
  uint64_t bits;     // its path
  bool leads;        // the first of its token's among the 16 rows of a matrix

  // Whether a column before `limit` is not in its own slot.
  __device__ bool gathers(int32_t limit) const { return (end < limit ? end : limit) > gathered; }

  // The slot of a column, counted from the tile's first. Columns that it doesn't see stay where
  // they are: staged or zero.
  __device__ int source(int32_t tile_begin, int column) const {
    int32_t depth = tile_begin + column - node_base;
    if (depth < 0 || depth >= path_length(bits)) return column;
    return node_base + node_at_depth(bits, depth) - tile_begin;
  }
};

// The logical position of a sequence's node 0; past all others where it is junk.
__device__ inline int32_t first_node_of(const TreeAttentionParams& p, int32_t b) {
  return p.node_base[b] < 0 ? INT32_MAX : p.node_base[b];
}

// Packed rows [first, first + count) of sequence b, whose token 0 is row `token` of q.
struct RowBlock {
  int32_t b, token, first, count;
};

// The index-th block of kRows packed rows, sequence after sequence; count 0 past the last.
template <int kRows>
__device__ RowBlock find_rows(const TreeAttentionParams& p, int32_t group, int32_t index) {
  int32_t lane = threadIdx.x % 32;
  for (int32_t first = 0; first < p.B; first += 32) {
    int32_t b = first + lane, token = 0, rows = 0;
    if (b < p.B) {
      token = p.qo_indptr[b];
      int64_t end = p.qo_indptr[b + 1] < p.M ? p.qo_indptr[b + 1] : p.M;
      if (0 <= token && token < end) rows = (int32_t)(end - token) * group;
    }
    int32_t blocks = (rows + kRows - 1) / kRows, through = blocks;
    for (int step = 1; step < 32; step *= 2) {
      int32_t before = __shfl_up_sync(kFullMask, through, step);
      if (lane >= step) through += before;
    }
    uint32_t past = __ballot_sync(kFullMask, index < through);
    if (past) {
      int owner = first_node(past);
      index -= __shfl_sync(kFullMask, through - blocks, owner);
      rows = __shfl_sync(kFullMask, rows, owner) - index * kRows;
      token = __shfl_sync(kFullMask, token, owner);
      return {first + owner, token, index * kRows, rows < kRows ? rows : kRows};
    }
    index -= __shfl_sync(kFullMask, through, 31);
  }
  return {0, 0, 0, 0};
}

// Positions beyond the block table don't exist.
__device__ inline Span visible_to(const TreeAttentionParams& p, int64_t b, int64_t token) {
  Span span = visible(p.kv_start[b], p.positions[token], p.window);
  span = span.within(0, p.max_blocks * p.cache.block_size);
  return span.empty() ? Span{0, 0} : span;
}

__device__ inline PackedRow packed_row(const TreeAttentionParams& p, const RowBlock& block,
                                       int32_t group, int32_t i) {
  PackedRow row{};
  row.token = -1;
  if (i >= block.count) return row;
  int32_t x = block.first + i;
  row.token = block.token + x / group;
  row.head = blockIdx.y * group + x % group;
  row.leads = i % 16 == 0 || x % group == 0;
  Span span = visible_to(p, block.b, row.token);
  row.begin = (int32_t)span.begin, row.end = row.gathered = (int32_t)span.end;
  row.node_base = first_node_of(p, block.b);
  if (row.end <= row.node_base) return row;
  row.bits = (uint64_t)p.node_bits[row.token];
  int32_t gathered = row.node_base + chain_length(row.bits);
  if (gathered < row.end) row.gathered = gathered;
  return row;
}

// What some rows see together.
struct Hull {
  int32_t begin = INT32_MAX, end = 0;
  int32_t gathered = INT32_MAX;  // the first position that one of them gathers
  uint64_t nodes = 0;

  __device__ bool meets(int32_t from, int32_t to) const { return begin < to && from < end; }
};

__device__ inline void include(Hull& hull, const PackedRow& row) {
  if (row.begin >= row.end) return;
  if (row.begin < hull.begin) hull.begin = row.begin;
  if (row.end > hull.end) hull.end = row.end;
  if (row.gathered < row.end && row.gathered < hull.gathered) hull.gathered = row.gathered;
  uint64_t bits = row.bits;
  for (int32_t depth = row.begin - row.node_base; bits && depth > 0; depth--) bits &= bits - 1;
  hull.nodes |= bits;
}

// Of n rows; by a whole warp.
__device__ inline Hull hull_of(const PackedRow* rows, int n) {
  Hull hull;
  for (int i = threadIdx.x % 32; i < n; i += 32) include(hull, rows[i]);
  hull.begin = __reduce_min_sync(kFullMask, hull.begin);
  hull.end = __reduce_max_sync(kFullMask, hull.end);
  hull.gathered = __reduce_min_sync(kFullMask, hull.gathered);
  if (hull.end == 0) hull.begin = 0;
  uint64_t high = __reduce_or_sync(kFullMask, (uint32_t)(hull.nodes >> 32));
  hull.nodes = high << 32 | __reduce_or_sync(kFullMask, (uint32_t)hull.nodes);
  return hull;
}

}  // namespace specfast::cuda
