// The checks that ops over draft trees and the rows they are judged by share.
#pragma once
#include "door.h"

namespace specfast::bind {

inline void logit_rows(Door& door, const Tensor& logits, const Tensor& temperature,
                       const Tensor& top_k, const Tensor& top_p, const Tensor& min_p,
                       const Tensor& seeds, const Tensor& positions, LogitRows& p) {
  p.dtype = door.activations(logits, "logits");
  p.logits = door.float_rows(logits, "logits", {-1, -1}, p.dtype);
  p.R = logits.size(0), p.V = logits.size(1), p.logits_stride = row_stride(logits);
  check_vocabulary(p.V, "logits");
  p.temperature = door.float_in(temperature, "temperature", {p.R});
  p.top_k = door.i32_in(top_k, "top_k", {p.R});
  p.top_p = door.float_in(top_p, "top_p", {p.R});
  p.min_p = door.float_in(min_p, "min_p", {p.R});
  p.seeds = door.i64_in(seeds, "seeds", {p.R});
  p.positions = door.i32_in(positions, "positions", {p.R});
}

// A wrong row or length would read past the end; rows and nodes are few, so look at all of them.
inline void draft_trees(Door& door, const Tensor& row_status, const Tensor& row_base,
                        const Tensor& draft_tokens, const Tensor& parents, const Tensor& lengths,
                        const Tensor& path, const Tensor& num_accepted, const Tensor& next_tokens,
                        const Tensor& status, int64_t num_rows, DraftTrees& p) {
  p.draft_tokens = door.i32_in(draft_tokens, "draft_tokens", {-1, -1});
  p.B = draft_tokens.size(0), p.N = draft_tokens.size(1), p.num_rows = num_rows;
  p.parents = door.i32_in(parents, "parents", {p.B, p.N});
  p.lengths = door.i32_in(lengths, "lengths", {p.B});
  p.row_status = door.i32_in(row_status, "row_status", {num_rows});
  p.row_base = door.i32_in(row_base, "row_base", {p.B});
  p.path = door.i32_out(path, "path", {p.B, p.N});
  p.num_accepted = door.i32_out(num_accepted, "num_accepted", {p.B});
  p.next_tokens = door.i32_out(next_tokens, "next_tokens", {p.B});
  p.status = door.i32_out(status, "status", {p.B});
  if (door.on_cuda()) return;
  for (int64_t b = 0; b < p.B; b++) {
    STD_TORCH_CHECK(p.lengths[b] >= 0 && p.lengths[b] <= p.N, "lengths[", b,
                    "] must be in [0, N = ", p.N, "], got ", p.lengths[b]);
    STD_TORCH_CHECK(p.row_base[b] < 0 || (int64_t)p.row_base[b] + p.lengths[b] < num_rows,
                    "row_base[", b, "] = ", p.row_base[b], " and lengths[", b, "] = ", p.lengths[b],
                    " reach past the ", num_rows, " rows");
  }
}

// Tokens index rows of a vocabulary, and parents nodes.
inline void check_nodes(const Door& door, const DraftTrees& p, int64_t vocab) {
  STD_TORCH_CHECK(p.N <= 64, "draft_tokens: at most 64 nodes a sequence, got ", p.N);
  if (door.on_cuda()) return;
  for (int64_t b = 0; b < p.B; b++) {
    for (int64_t i = 0; i < p.lengths[b]; i++) {
      int32_t token = p.draft_tokens[b * p.N + i], parent = p.parents[b * p.N + i];
      STD_TORCH_CHECK(token >= 0 && token < vocab, "draft_tokens[", b, ", ", i,
                      "] must be in [0, V = ", vocab, "), got ", token);
      STD_TORCH_CHECK(parent >= -1 && parent < i, "parents[", b, ", ", i, "] must be in [-1, ", i,
                      "), got ", parent);
    }
  }
}

}  // namespace specfast::bind
