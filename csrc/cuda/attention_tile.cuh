// Sixteen rows and one tile of 64 logical positions: scores, weights, weighted sums of V. Each
// score adds its k16 steps in order, each output its groups of 16 positions in order.
#pragma once
#include "cuda/attention_layout.cuh"
#include "cuda/attention_state.cuh"
#include "cuda/elements.cuh"

namespace specfast::cuda {

constexpr uint32_t kOnes = 0x3f803f80;  // bf16 1, twice

// What a warp has of its 16 rows: queries, the state, and of a tile its share of the scores.
template <class L>
class WarpAttention {
  static constexpr int kDim = L::kDim;

 public:
  Hull seen;
  State<L::kDims> state;

  __device__ WarpAttention(const TreeAttentionParams& p, AttentionShared<L>& shared)
      : p_(p), shared_(shared), rows_(shared.rows + L::first_row()) {
    seen = hull_of(rows_, 16);
    state.reset();
  }

  // Of the two rows whose elements this thread has in a fragment: half 0 or 1.
  __device__ const PackedRow& row(int half) const { return rows_[L::lane() / 4 + 8 * half]; }

  // Through a stage that nobody else uses.
  __device__ void load_queries(int stage) {
    Bf16* staged = shared_.stages.planes[stage][0];
    constexpr int kChunks = kDim / kChunk;
#pragma unroll
    for (int n = 0; n < L::kRows * kChunks / kThreads; n++) {
      int i = n * kThreads + threadIdx.x;
      const PackedRow& row = shared_.rows[i / kChunks];
      int64_t at = row.token * p_.q_stride + row.head * kDim + i % kChunks * kChunk;
      uint4 chunk{};
      if (row.token >= 0)
        chunk = p_.dtype == DType::bf16 ? *(reinterpret_cast<const uint4*>(p_.q) + at / kChunk)
                                        : narrowed(p_.q + at);
      *reinterpret_cast<uint4*>(staged + chunk_at<kDim>(i / kChunks, i % kChunks)) = chunk;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDim / 16; k++)
      ldmatrix_x4(queries_[k],
                  staged + chunk_at<kDim>(L::first_row() + L::row16(), 2 * k + L::chunk16()));
  }

  // The tile that is staged in `stage`; where rows gather, the next tile is too, behind it.
  __device__ void attend(int32_t tile, int stage) {
    stage_ = stage;
    float scores[L::kGroups][2][4];
    score(scores, staged(0, L::first_group() * 16 + L::key_row()));
    bool gathers = seen.gathered < (tile + 1) * kTile;
    if (gathers) {
#pragma unroll
      for (int g = 0; g < L::kGroups; g++) score_gathered(scores[g], tile, L::first_group() + g);
    }
    weigh(scores, tile);
    L::sync_sharing();
    if (gathers)
      add_gathered(tile);
    else
      add_values();
  }

 private:
  __device__ static uint4 narrowed(const float* x) {
    Elements<float> low = load_elements(x, 4), high = load_elements(x + 4, 4);
    return {pack_bf16(low.v[0], low.v[1]), pack_bf16(low.v[2], low.v[3]),
            pack_bf16(high.v[0], high.v[1]), pack_bf16(high.v[2], high.v[3])};
  }

  // K or V in a slot of the tile; from 64 on of the next tile.
  __device__ StagedRow staged(int plane, int slot) const {
    return {shared_.stages.planes[stage_][plane] + slot * kDim, slot % 8};
  }
  __device__ StagedRow gathered(int plane, int slot) const {
    int stage = slot < kTile ? stage_ : next_stage(stage_);
    return {shared_.stages.planes[stage][plane] + slot % kTile * kDim, slot % 8};
  }

  // Scores of groups of 16 columns, this lane pointing at one of the first group's.
  template <int kGroups>
  __device__ void score(float (&s)[kGroups][2][4], const StagedRow& column) const {
#pragma unroll
    for (int i = 0; i < kGroups * 8; i++) s[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll
    for (int k = 0; k < kDim / 16; k++)
#pragma unroll
      for (int g = 0; g < kGroups; g++) {
        uint32_t keys[4];
        ldmatrix_x4(keys, column.chunk(2 * k + L::key_chunk()) + g * 16 * kDim);
        mma_m16n8k16(s[g][0], queries_[k], {keys[0], keys[1]});
        mma_m16n8k16(s[g][1], queries_[k], {keys[2], keys[3]});
      }
  }

  // visit(row) for one row of each token that gathers a column before `limit`.
  template <class Visit>
  __device__ void for_gathering(int32_t limit, const Visit& visit) const {
#pragma unroll 1
    for (int i = 0; i < 16; i++)
      if (rows_[i].leads && rows_[i].gathers(limit)) visit(rows_[i]);
  }

  __device__ void score_gathered(float (&s)[2][4], int32_t tile, int group) const {
    int32_t limit = tile * kTile + group * 16 + 16;
    if (limit <= seen.gathered) return;
    for_gathering(limit, [&](const PackedRow& from) {
      float own[1][2][4];
      score(own, gathered(0, from.source(tile * kTile, group * 16 + L::key_row())));
#pragma unroll
      for (int c = 0; c < 4; c++)
        if (row(c / 2).token == from.token) s[0][c] = own[0][0][c], s[1][c] = own[0][1][c];
    });
  }

  // Scores become weights under the rows' new maxima.
  __device__ void weigh(float (&scores)[L::kGroups][2][4], int32_t tile) {
    int32_t first = tile * kTile + L::first_group() * 16 + L::lane() % 4 * 2;
    int32_t begin[2] = {row(0).begin, row(1).begin};
    uint32_t length[2] = {(uint32_t)(row(0).end - begin[0]), (uint32_t)(row(1).end - begin[1])};
    float top[2] = {state.m[0], state.m[1]};
    auto for_scores = [&](auto visit) {
#pragma unroll
      for (int i = 0; i < L::kGroups * 8; i++) {
        int half = i / 2 % 2, position = first + i / 4 * 8 + i % 2;
        bool seen = (uint32_t)(position - begin[half]) < length[half];
        visit(half, scores[i / 8][i / 4 % 2][i % 4], seen);
      }
    };
    for_scores([&](int, float& s, bool) { s *= p_.scale; });
    if (p_.soft_cap > 0)
      for_scores([&](int, float& s, bool) { s = p_.soft_cap * tanh(s / p_.soft_cap); });
    for_scores([&](int half, float& s, bool seen) {
      s *= kLog2e;
      top[half] = max(seen ? ceil(s) : kNoScore, top[half]);  // a NaN's weight is NaN
    });
    share_tops(top);
    state.raise_max(top);
    for_scores([&](int half, float& s, bool seen) {
      float n = ceil(s), w = exp2_poly(s - n) * pow2i(n - top[half]);
      s = seen ? w : 0.0f;
    });
    Bf16* weights = shared_.weights + L::first_row() * kTile;
#pragma unroll
    for (int i = 0; i < L::kGroups * 4; i++) {
      float* pair = scores[i / 4][i / 2 % 2] + i % 2 * 2;
      int at = chunk_at<kTile>(L::lane() / 4 + i % 2 * 8, L::first_group() * 2 + i / 2);
      uint32_t packed = pack_bf16(pair[0], pair[1]);
      reinterpret_cast<uint32_t*>(weights + at)[L::lane() % 4] = packed;
    }
  }

  // The maxima over the lanes and warps that have the row's other columns.
  __device__ void share_tops(float (&top)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++)
      for (int step = 1; step < 4; step *= 2)
        top[half] = max(top[half], __shfl_xor_sync(kFullMask, top[half], step));
    if (L::kSharing == 1) return;
    if (L::lane() % 4 == 0)
      for (int half = 0; half < 2; half++)
        shared_.tops[L::warp()][L::lane() / 4 + half * 8] = top[half];
    __syncthreads();
    for (int w = 0; w < kWarps; w++)
      for (int half = 0; half < 2; half++)
        top[half] = max(top[half], shared_.tops[w][L::lane() / 4 + half * 8]);
  }

  __device__ void load_weights(uint32_t (&w)[4], int group) const {
    const Bf16* weights = shared_.weights + L::first_row() * kTile;
    ldmatrix_x4(w, weights + chunk_at<kTile>(L::row16(), 2 * group + L::chunk16()));
  }

  __device__ void add_values() {
#pragma unroll
    for (int g = 0; g < kTile / 16; g++) {
      uint32_t w[4];
      load_weights(w, g);
      add_group(w, staged(1, g * 16 + L::row16()));
    }
  }

  __device__ void add_gathered(int32_t tile) {
#pragma unroll 1
    for (int g = 0; g < kTile / 16; g++) {
      uint32_t w[4];
      load_weights(w, g);
      int32_t limit = tile * kTile + g * 16 + 16;
      add_kept(w, !row(0).gathers(limit), !row(1).gathers(limit), staged(1, g * 16 + L::row16()));
      for_gathering(limit, [&](const PackedRow& from) {
        add_kept(w, row(0).token == from.token, row(1).token == from.token,
                 gathered(1, from.source(tile * kTile, g * 16 + L::row16())));
      });
    }
  }

  // For some rows only: 0 for the others changes nothing.
  __device__ void add_kept(const uint32_t (&w)[4], bool lower, bool upper,
                           const StagedRow& column) {
    uint32_t kept[4] = {lower ? w[0] : 0, upper ? w[1] : 0, lower ? w[2] : 0, upper ? w[3] : 0};
    add_group(kept, column);
  }

  // o and l of 16 columns; this lane points at one of them.
  __device__ void add_group(const uint32_t (&w)[4], const StagedRow& column) {
    mma_m16n8k16(state.l, w, {kOnes, kOnes});
#pragma unroll
    for (int d = 0; d < L::kDims / 16; d++) {
      uint32_t values[4];
      ldmatrix_x4_trans(values, column.chunk(L::first_dim() / kChunk + 2 * d + L::chunk16()));
      mma_m16n8k16(state.o[2 * d], w, {values[0], values[1]});
      mma_m16n8k16(state.o[2 * d + 1], w, {values[2], values[3]});
    }
  }

  const TreeAttentionParams& p_;
  AttentionShared<L>& shared_;
  const PackedRow* rows_;
  int stage_ = 0;  // of the tile; the next one has the next
  uint32_t queries_[kDim / 16][4];
};

}  // namespace specfast::cuda
