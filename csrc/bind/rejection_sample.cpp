#include "draft_trees.h"

namespace specfast::bind {
namespace {

void check_map(const RejectionSampleParams& p) {
  for (int64_t i = 0; p.vocab_map && i < p.law_vocab; i++)
    STD_TORCH_CHECK(p.vocab_map[i] >= 0 && p.vocab_map[i] < p.V, "vocab_map[", i,
                    "] must be in [0, V = ", p.V, "), got ", p.vocab_map[i]);
}

void check_law_rows(const RejectionSampleParams& p) {
  for (int64_t b = 0; b < p.B; b++)
    for (int64_t i = 0; i < p.lengths[b]; i++) {
      int32_t row = p.law_row[b * p.N + i];
      STD_TORCH_CHECK(row >= -1 && row < p.num_laws, "law_row[", b, ", ", i, "] must be in [-1, ",
                      p.num_laws, "), got ", row);
    }
}

void draft_laws_in(Door& door, const std::optional<Tensor>& laws,
                   const std::optional<Tensor>& law_row, const std::optional<Tensor>& vocab_map,
                   RejectionSampleParams& p) {
  STD_TORCH_CHECK(laws.has_value() == law_row.has_value(),
                  "draft_laws and law_row: give both or neither");
  STD_TORCH_CHECK(laws.has_value() || !vocab_map, "vocab_map: maps draft_laws, of which are none");
  if (!laws) return;
  p.laws = door.float_in(*laws, "draft_laws", {-1, vocab_map ? -1 : p.V});
  p.num_laws = laws->size(0), p.law_vocab = laws->size(1);
  p.law_row = door.i32_in(*law_row, "law_row", {p.B, p.N});
  p.vocab_map = door.i32_in(vocab_map, "vocab_map", {p.law_vocab});
  if (door.on_cuda()) return;
  check_map(p);
  check_law_rows(p);
}

}  // namespace

void rejection_sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
                      const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
                      const Tensor& positions, const Tensor& row_status, const Tensor& row_base,
                      const Tensor& roots, const Tensor& draft_tokens, const Tensor& parents,
                      const Tensor& lengths, const std::optional<Tensor>& laws,
                      const std::optional<Tensor>& law_row, const std::optional<Tensor>& vocab_map,
                      bool by_token, Tensor path, Tensor num_accepted, Tensor next_tokens,
                      Tensor status, const std::optional<Tensor>& workspace) {
  Door door;
  RejectionSampleParams p{};
  logit_rows(door, logits, temperature, top_k, top_p, min_p, seeds, positions, p);
  draft_trees(door, row_status, row_base, draft_tokens, parents, lengths, path, num_accepted,
              next_tokens, status, p.R, p);
  check_nodes(door, p, p.V);
  p.roots = door.i32_in(roots, "roots", {p.B});
  draft_laws_in(door, laws, law_row, vocab_map, p);
  p.by_token = by_token;
  p.workspace = door.workspace(workspace, workspace_bytes(p));
  door.run(p, SPECFAST_LAUNCHERS(rejection_sample));
}

SPECFAST_REGISTER(rejection_sample)

}  // namespace specfast::bind
