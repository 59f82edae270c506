#include "draft_trees.h"

namespace specfast::bind {
namespace {

void logprob_outputs(Door& door, const std::optional<Tensor>& ids,
                     const std::optional<Tensor>& logprobs, SampleRowsParams& p) {
  STD_TORCH_CHECK(ids.has_value() == logprobs.has_value(),
                  "logprob_ids and logprobs: give both or neither");
  if (!ids) return;
  p.logprob_ids = door.i32_out(ids, "logprob_ids", {p.R, -1});
  STD_TORCH_CHECK(ids->size(1) >= 1, "logprob_ids: the first column is the chosen token's, got ",
                  shape_text(*ids));
  p.L = ids->size(1) - 1;
  p.logprobs = door.float_out(logprobs, "logprobs", {p.R, 1 + p.L});
}

}  // namespace

void sample_rows(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
                 const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
                 const Tensor& positions, Tensor tokens, Tensor status,
                 const std::optional<Tensor>& logprob_ids, const std::optional<Tensor>& logprobs,
                 const std::optional<Tensor>& workspace) {
  Door door;
  SampleRowsParams p{};
  logit_rows(door, logits, temperature, top_k, top_p, min_p, seeds, positions, p);
  p.tokens = door.i32_out(tokens, "tokens", {p.R});
  p.status = door.i32_out(status, "status", {p.R});
  logprob_outputs(door, logprob_ids, logprobs, p);
  p.workspace = door.workspace(workspace, workspace_bytes(p));
  door.run(p, SPECFAST_LAUNCHERS(sample_rows));
}

SPECFAST_REGISTER(sample_rows)

}  // namespace specfast::bind
