#include "checks.h"
#include "kernels.h"

namespace specfast::bind {

void rank_candidates(const Tensor& logits, const std::optional<Tensor>& d2t,
                     const Tensor& temperature, const Tensor& seeds, const Tensor& positions,
                     Tensor ids, Tensor scores) {
  RankCandidatesParams p{};
  p.logits = f32_rows(logits, "logits", {-1, -1});
  p.R = logits.size(0), p.V = logits.size(1), p.logits_stride = row_stride(logits);
  check_vocabulary(p.V, "logits");
  p.d2t = i32_in(d2t, "d2t", {p.V});
  p.temperature = f32_in(temperature, "temperature", {p.R});
  p.seeds = i64_in(seeds, "seeds", {p.R});
  p.positions = i32_in(positions, "positions", {p.R});
  p.ids = i32_out(ids, "ids", {p.R, -1});
  p.m = ids.size(1);
  p.scores = f32_out(scores, "scores", {p.R, p.m});
  cpu::rank_candidates(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  m.impl("rank_candidates", TORCH_BOX(&rank_candidates));
}

}  // namespace specfast::bind
