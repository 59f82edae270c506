// One block of threads of tree_attention: the rows that it has, over the tiles that they see.
#pragma once
#include "cuda/attention_tile.cuh"

namespace specfast::cuda {

template <class L>
class AttentionBlock {
  static constexpr int kDim = L::kDim;

 public:
  // shared.rows are set.
  __device__ AttentionBlock(const TreeAttentionParams& p, const AttentionPlan& plan,
                            const RowBlock& block, AttentionShared<L>& shared)
      : p_(p),
        plan_(plan),
        all_(hull_of(shared.rows, L::kRows)),
        order_{(int32_t)plan.parts,
               all_.gathered < all_.end ? first_node_of(p, block.b) / kTile : -1},
        stager_(p, block, shared.rows, all_, order_, shared.stages),
        rows_(p, shared) {}

  __device__ void run(int32_t part) {
    int32_t split = all_.begin / kSplit + part, tile = all_.begin / kTile;
    if (tile < split * kTilesPerSplit) tile = split * kTilesPerSplit;
    if (tile * kTile < all_.end)
      attend(tile);
    else if (plan_.parts == 1)
      end_split(split, true, true);
  }

 private:
  __device__ void attend(int32_t tile) {
    stager_.start(tile);
    // The last stage is free until the first tile is attended.
    rows_.load_queries(kStages - 1);
    for (int stage = 0; tile * kTile < all_.end; stage = next_stage(stage)) {
      if (tile == order_.tail)
        cp_async_wait<kStages - 3>();
      else
        cp_async_wait<kStages - 2>();
      __syncthreads();
      int32_t slot = stager_.copy_next(stage);
      // Warps that share rows meet at barriers.
      if (L::kSharing > 1 || rows_.seen.meets(tile * kTile, (tile + 1) * kTile))
        rows_.attend(tile, stage);
      stager_.keep(stage, slot);
      int32_t next = order_.next(tile), split = tile / kTilesPerSplit;
      bool last = next * kTile >= all_.end;
      if (last || next / kTilesPerSplit != split)
        end_split(split, split == all_.begin / kSplit, last);
      tile = next;
    }
  }

  // A split's state goes to the workspace, or is folded into the total there: each thread has its
  // own elements of o.
  __device__ void end_split(int32_t split, bool first, bool last) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const PackedRow& r = rows_.row(half);
      if (plan_.parts > 1) {
        if (r.begin < (split + 1) * kSplit && split * kSplit < r.end)
          store_state(half, state_of(r, split - r.begin / kSplit));
      } else if (r.token >= 0) {
        if (!first) fold_into(half, state_of(r, 0));
        last ? write_output(half, r) : keep_total(half, state_of(r, 0));
      }
    }
    rows_.state.reset();
  }

  __device__ float* state_of(const PackedRow& r, int64_t slot) const {
    return state_at<kDim>(p_, plan_, r.token, r.head, slot);
  }
  __device__ static int pair(int i) { return L::first_dim() + i * 8 + L::lane() % 4 * 2; }

  // A row's state becomes the total followed by it.
  __device__ void fold_into(int half, const float* total) {
    FoldScales by = fold_scales(total_m_[half], rows_.state.m[half]);
    auto add = [&](float before, float& x) { x = before * by.total + x * by.split; };
#pragma unroll
    for (int i = 0; i < L::kDims / 8; i++) {
      float2 before = *reinterpret_cast<const float2*>(total + pair(i));
      add(before.x, rows_.state.o[i][2 * half]);
      add(before.y, rows_.state.o[i][2 * half + 1]);
    }
    add(total_l_[half], rows_.state.l[2 * half]);
    rows_.state.m[half] = total_m_[half];
  }

  __device__ void keep_total(int half, float* total) {
    store_sums(half, total);
    total_l_[half] = rows_.state.l[2 * half];
    total_m_[half] = rows_.state.m[half];
  }

  __device__ void store_state(int half, float* state) const {
    store_sums(half, state);
    if (pair(0) == 0) store_pair(state + kDim, rows_.state.l[2 * half], rows_.state.m[half]);
  }

  __device__ void store_sums(int half, float* o) const {
#pragma unroll
    for (int i = 0; i < L::kDims / 8; i++)
      store_pair(o + pair(i), rows_.state.o[i][2 * half], rows_.state.o[i][2 * half + 1]);
  }

  __device__ void write_output(int half, const PackedRow& r) const {
    int64_t at = (r.token * p_.H + r.head) * kDim;
    float l = rows_.state.l[2 * half];
#pragma unroll
    for (int i = 0; i < L::kDims / 8; i++)
      store_output(p_, at + pair(i), normalised(rows_.state.o[i][2 * half], l),
                   normalised(rows_.state.o[i][2 * half + 1], l));
  }

  const TreeAttentionParams& p_;
  const AttentionPlan& plan_;
  Hull all_;
  TileOrder order_;
  Stager<kDim> stager_;
  WarpAttention<L> rows_;
  float total_l_[2], total_m_[2];  // of this thread's two rows, the splits before
};

}  // namespace specfast::cuda
