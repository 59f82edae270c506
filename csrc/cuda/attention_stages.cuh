// K and V of the next tiles of a sequence and kv head in shared memory, as a ring that cp.async
// fills ahead of use.
#pragma once
#include "core/bf16.h"
#include "cuda/attention_rows.cuh"
#include "cuda/ptx.cuh"

namespace specfast::cuda {

constexpr int kTilesPerSplit = kSplit / kTile;
constexpr int kStages = 3;
constexpr int kThreads = 128;
constexpr int kChunk = 8;  // elements of 16 bytes

// The element at which chunk `chunk` of a row begins, in a matrix whose rows have kDim elements.
// Chunks are permuted by the row's number: eight rows' same chunk, which is what ldmatrix reads at
// once, lies in eight different groups of banks.
template <int kDim>
SPECFAST_HD int chunk_at(int row, int chunk) {
  return row * kDim + (chunk ^ row % 8) * kChunk;
}

// One row of such a matrix.
struct StagedRow {
  const Bf16* begin;
  int key;
  __device__ __forceinline__ const Bf16* chunk(int chunk) const {
    return begin + (chunk ^ key) * kChunk;
  }
};

template <int kDim>
struct Stages {
  Bf16 planes[kStages][2][kTile * kDim];  // K, V
  int32_t slots[kStages][kTile];          // of the cache, that lie there; -1: zeros do
};

__device__ inline int next_stage(int stage) { return stage + 1 == kStages ? 0 : stage + 1; }

// The tiles that one of `parts` takes: whole splits, dealt out in turn.
struct TileOrder {
  int32_t parts;
  int32_t tail;  // the tile of node 0's slot if a row gathers, or -1

  __device__ int32_t next(int32_t tile) const {
    bool last = (tile + 1) % kTilesPerSplit == 0;
    return tile + 1 + (last ? (parts - 1) * kTilesPerSplit : 0);
  }
  // Node slots reach into the tile after the tail, whoever attends that one.
  __device__ int32_t next_staged(int32_t tile) const {
    return tile == tail ? tile + 1 : next(tile);
  }
};

// Fills the ring.
template <int kDim>
class Stager {
 public:
  __device__ Stager(const TreeAttentionParams& p, const RowBlock& block, const PackedRow* rows,
                    const Hull& hull, const TileOrder& order, Stages<kDim>& stages)
      : cache_(p.cache),
        table_(p.block_tables + block.b * p.max_blocks),
        capacity_(p.max_blocks * p.cache.block_size),
        node_base_(first_node_of(p, block.b)),
        rows_(rows),
        num_rows_(block.count),
        hull_(hull),
        order_(order),
        stages_(stages) {}

  // Starts to copy the first tiles, all that fit but one.
  __device__ void start(int32_t tile) {
    next_ = tile;
#pragma unroll 1
    for (int stage = 0; stage < kStages; stage++, tile = order_.next_staged(tile))
      keep(stage, find(tile));
    __syncthreads();
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; stage++) copy(stage);
  }

  // Starts to copy one more, into the stage before this one. Returns what is to be kept for the one
  // after that, by the next barrier.
  __device__ int32_t copy_next(int stage) {
    copy(stage == 0 ? kStages - 1 : stage - 1);
    return find(next_);
  }
  __device__ void keep(int stage, int32_t slot) {
    if (threadIdx.x < kTile) stages_.slots[stage][threadIdx.x] = slot;
  }

 private:
  // Where this thread's column of the tile lies in the cache; -1 if nobody sees it.
  __device__ int32_t find(int32_t tile) const {
    int32_t position = tile * kTile + threadIdx.x % kTile, node = position - node_base_;
    bool seen = node < 0 ? is_seen(position) : node < 64 && hull_.nodes >> node & 1;
    if (!seen || position >= capacity_) return -1;
    int32_t size = (int32_t)cache_.block_size, block = table_[position / size];
    return 0 <= block && block < cache_.num_blocks ? block * size + position % size : -1;
  }

  // A group of copies, of the next tile's slots, which were kept; it is empty past the last one.
  __device__ void copy(int stage) {
    if (reads(next_)) copy_slots(stage);
    cp_async_commit();
    next_ = order_.next_staged(next_);
  }

  // Whether any slot of the tile may be read.
  __device__ bool reads(int32_t tile) const {
    int32_t end = hull_.nodes ? node_base_ + last_node(hull_.nodes) + 1 : 0;
    return tile * kTile < (end > hull_.end ? end : hull_.end);
  }

  __device__ void copy_slots(int stage) {
    constexpr int kChunks = kDim / kChunk;  // of a row; a thread copies one chunk of many rows
    int32_t token_size = (int32_t)cache_.num_kv_heads * kDim, chunk = threadIdx.x % kChunks;
    int64_t plane = cache_.num_blocks * cache_.block_size * token_size;
    const Bf16* keys = static_cast<const Bf16*>(cache_.data) + blockIdx.y * kDim + chunk * kChunk;
#pragma unroll
    for (int n = 0; n < kTile * kChunks / kThreads; n++) {
      int row = n * kThreads / kChunks + threadIdx.x / kChunks, to = chunk_at<kDim>(row, chunk);
      int32_t slot = stages_.slots[stage][row];
      const Bf16* from = keys + (int64_t)(slot < 0 ? 0 : slot) * token_size;
      int bytes = slot < 0 ? 0 : 16;
      cp_async_16_fill(stages_.planes[stage][0] + to, from, bytes);
      cp_async_16_fill(stages_.planes[stage][1] + to, from + plane, bytes);
    }
  }

  // The last row sees most of what any row sees.
  __device__ bool is_seen(int32_t position) const {
    for (int i = num_rows_ - 1; i >= 0; i--)
      if (rows_[i].begin <= position && position < rows_[i].end) return true;
    return false;
  }

  const KvLayer& cache_;
  const int32_t* table_;
  int64_t capacity_;
  int32_t node_base_;
  const PackedRow* rows_;
  int32_t num_rows_;
  Hull hull_;
  TileOrder order_;
  int32_t next_ = 0;  // the tile to copy
  Stages<kDim>& stages_;
};

}  // namespace specfast::cuda
