// How tree_attention's work is cut. One item is one token's heads of one kv head, over one split or
// over all of them; items are laid out by sequence, kv head, split and token and measured in
// row-tiles, so that an even cut of the row-tiles is an even share of the work.
#pragma once
#include "core/tree.h"
#include "cpu/attention_state.h"
#include "cpu/scratch.h"
#include "params.h"

namespace specfast::cpu::SPECFAST_TIER {

constexpr int64_t kSplit = 512;
// Splits run side by side if their states fit here, one after another otherwise.
constexpr int64_t kPartialFloats = 1 << 20;

struct Plan {
  int64_t group;                   // query heads a kv head
  int64_t splits;                  // splits an item
  int64_t first_split, end_split;  // of all rows
  int64_t cost;                    // row-tiles of all items
  float* partial;  // [M, H, end_split - first_split] states if items are single splits, or null
};

SPECFAST_INLINE int64_t num_tiles(Span span) {
  return span.empty() ? 0 : (span.end - 1) / kTile - span.begin / kTile + 1;
}

inline Plan make_plan(const TreeAttentionParams& p) {
  Plan plan{p.H / p.cache.num_kv_heads, 0, INT64_MAX, 0, 0, nullptr};
  for (int64_t b = 0; b < p.B; b++)
    for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; row++) {
      Span span = visible(p.kv_start[b], p.positions[row], p.window);
      if (span.empty()) continue;
      int64_t first = span.begin / kSplit, end = (span.end - 1) / kSplit + 1;
      if (first < plan.first_split) plan.first_split = first;
      if (end > plan.end_split) plan.end_split = end;
      plan.cost += num_tiles(span) * p.H;
    }
  if (plan.cost == 0) return plan;
  plan.splits = plan.end_split - plan.first_split;
  int64_t floats = p.M * p.H * plan.splits * state_stride(p.cache.head_dim);
  if (plan.splits > 1 && floats <= kPartialFloats) {
    plan.splits = 1;
    static thread_local Scratch scratch;
    plan.partial = (float*)scratch.reserve(floats * (int64_t)sizeof(float));
  }
  return plan;
}

SPECFAST_INLINE float* partial_state(const TreeAttentionParams& p, const Plan& plan, int64_t row,
                                     int64_t head, int64_t split) {
  int64_t splits = plan.end_split - plan.first_split;
  int64_t index = (row * p.H + head) * splits + split - plan.first_split;
  return plan.partial + index * state_stride(p.cache.head_dim);
}

// visit(b, kv_head, first_row, last_row, split) for the items that begin in [begin, end).
template <class Visit>
void for_items(const TreeAttentionParams& p, const Plan& plan, int64_t begin, int64_t end,
               const Visit& visit) {
  int64_t at = 0;
  for (int64_t b = 0; b < p.B; b++)
    for (int64_t kv_head = 0; kv_head < p.cache.num_kv_heads; kv_head++)
      for (int64_t s = plan.first_split; s < plan.end_split; s += plan.splits) {
        int64_t first = -1, last = -1;
        for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; row++) {
          if (begin <= at && at < end) first = first < 0 ? row : first, last = row + 1;
          Span span = visible(p.kv_start[b], p.positions[row], p.window)
                          .within(s * kSplit, (s + plan.splits) * kSplit);
          at += num_tiles(span) * plan.group;
        }
        if (first >= 0) visit(b, kv_head, first, last, s);
      }
}

}  // namespace specfast::cpu::SPECFAST_TIER
