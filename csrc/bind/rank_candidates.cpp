#include "door.h"

namespace specfast::bind {

void rank_candidates(const Tensor& logits, const std::optional<Tensor>& d2t,
                     const Tensor& temperature, const Tensor& seeds, const Tensor& positions,
                     Tensor ids, Tensor scores, const std::optional<Tensor>& workspace) {
  Door door;
  RankCandidatesParams p{};
  p.dtype = door.activations(logits, "logits");
  p.logits = door.float_rows(logits, "logits", {-1, -1}, p.dtype);
  p.R = logits.size(0), p.V = logits.size(1), p.logits_stride = row_stride(logits);
  check_vocabulary(p.V, "logits");
  p.d2t = door.i32_in(d2t, "d2t", {p.V});
  p.temperature = door.float_in(temperature, "temperature", {p.R});
  p.seeds = door.i64_in(seeds, "seeds", {p.R});
  p.positions = door.i32_in(positions, "positions", {p.R});
  p.ids = door.i32_out(ids, "ids", {p.R, -1});
  p.m = ids.size(1);
  p.scores = door.float_out(scores, "scores", {p.R, p.m});
  p.workspace = door.workspace(workspace, workspace_bytes(p));
  door.run(p, SPECFAST_LAUNCHERS(rank_candidates));
}

SPECFAST_REGISTER(rank_candidates)

}  // namespace specfast::bind
