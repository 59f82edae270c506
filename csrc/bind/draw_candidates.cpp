#include "draft_trees.h"
#include "kernels.h"

namespace specfast::bind {

void draw_candidates(const Tensor& logits, const std::optional<Tensor>& d2t,
                     const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
                     const Tensor& min_p, const Tensor& seeds, const Tensor& positions,
                     const Tensor& nodes, const Tensor& roots, Tensor ids, Tensor laws) {
  DrawCandidatesParams p{};
  logit_rows(logits, temperature, top_k, top_p, min_p, seeds, positions, p);
  p.d2t = i32_in(d2t, "d2t", {p.V});
  p.nodes = i32_in(nodes, "nodes", {p.R});
  p.roots = i32_in(roots, "roots", {p.R});
  p.ids = i32_out(ids, "ids", {p.R, -1});
  p.m = ids.size(1);
  p.laws = f32_out(laws, "laws", {p.R, p.V});
  cpu::draw_candidates(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  m.impl("draw_candidates", TORCH_BOX(&draw_candidates));
}

}  // namespace specfast::bind
