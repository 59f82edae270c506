// How tree_attention's work is cut: which block of threads has which rows and splits, and which of
// its threads has what of them.
#pragma once
#include "cuda/attention_stages.cuh"

namespace specfast::cuda {

constexpr int kWarps = kThreads / 32;

// From sizes that the host knows, so that a graph can be replayed.
struct AttentionPlan {
  bool prefill;    // the layout
  int64_t blocks;  // row blocks at most
  int64_t parts;   // that a row block's splits are dealt out to; 1: it folds them itself
  int64_t slots;   // states that the workspace has for a row
  int32_t group;   // query heads a kv head
};

// Of the four warps of a block: decode, kRowWarps = 1, has one 16-row matrix that they share;
// prefill, kRowWarps = 4, one each. Warps that share split its scores by columns and its output by
// dimensions, never a sum, so both give the same bits.
template <int kHeadDim, int kRowWarps>
struct AttentionLayout {
  static constexpr int kDim = kHeadDim;
  static constexpr int kRows = 16 * kRowWarps;           // packed rows a block
  static constexpr int kSharing = kWarps / kRowWarps;    // warps that share 16 rows
  static constexpr int kGroups = kTile / 16 / kSharing;  // of 16 columns whose scores a warp has
  static constexpr int kDims = kDim / kSharing;          // of the output a warp has

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int first_row() { return warp() / kSharing * 16; }
  __device__ static int first_group() { return warp() % kSharing * kGroups; }
  __device__ static int first_dim() { return warp() % kSharing * kDims; }

  // The row and chunk of a 16x16 matrix that this lane points ldmatrix at: its four quarters go
  // down the rows first (queries, weights, values), or along them (keys).
  __device__ static int row16() { return lane() % 16; }
  __device__ static int chunk16() { return lane() / 16; }
  __device__ static int key_row() { return lane() / 16 * 8 + lane() % 8; }
  __device__ static int key_chunk() { return lane() / 8 % 2; }

  __device__ static void sync_sharing() { kSharing > 1 ? __syncthreads() : __syncwarp(); }
};

template <class L>
struct AttentionShared {
  Stages<L::kDim> stages;
  Bf16 weights[L::kRows * kTile];
  float tops[kWarps][16];
  PackedRow rows[L::kRows];
};

// A state in the workspace: o [D], then l, then m; aligned.
constexpr int kStateTail = 4;
template <int kDim>
__device__ float* state_at(const TreeAttentionParams& p, const AttentionPlan& plan, int64_t token,
                           int64_t head, int64_t slot) {
  return p.workspace + ((token * p.H + head) * plan.slots + slot) * (kDim + kStateTail);
}

__device__ inline void store_pair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = {x, y};
}
__device__ inline void store_pair(Bf16* to, float x, float y) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(x, y);
}
__device__ inline void store_output(const TreeAttentionParams& p, int64_t at, float x, float y) {
  if (p.dtype == DType::bf16)
    store_pair(reinterpret_cast<Bf16*>(p.out) + at, x, y);
  else
    store_pair(p.out + at, x, y);
}

}  // namespace specfast::cuda
