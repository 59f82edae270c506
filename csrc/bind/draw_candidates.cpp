#include "draft_trees.h"

namespace specfast::bind {

void draw_candidates(const Tensor& logits, const std::optional<Tensor>& d2t,
                     const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
                     const Tensor& min_p, const Tensor& seeds, const Tensor& positions,
                     const Tensor& nodes, const Tensor& roots, Tensor ids, Tensor laws,
                     const std::optional<Tensor>& workspace) {
  Door door;
  DrawCandidatesParams p{};
  logit_rows(door, logits, temperature, top_k, top_p, min_p, seeds, positions, p);
  p.d2t = door.i32_in(d2t, "d2t", {p.V});
  p.nodes = door.i32_in(nodes, "nodes", {p.R});
  p.roots = door.i32_in(roots, "roots", {p.R});
  p.ids = door.i32_out(ids, "ids", {p.R, -1});
  p.m = ids.size(1);
  p.laws = door.float_out(laws, "laws", {p.R, p.V});
  p.workspace = door.workspace(workspace, workspace_bytes(p));
  door.run(p, SPECFAST_LAUNCHERS(draw_candidates));
}

SPECFAST_REGISTER(draw_candidates)

}  // namespace specfast::bind
