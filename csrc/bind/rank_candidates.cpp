#include "door.h"

namespace specfast::bind {

void rank_candidates(const Tensor& logits, const std::optional<Tensor>& d2t,
                     const Tensor& temperature, const Tensor& seeds, const Tensor& positions,
                     Tensor ids, Tensor scores) {
  Door door;
  RankCandidatesParams p{};
  p.logits = door.float_rows(logits, "logits", {-1, -1});
  p.R = logits.size(0), p.V = logits.size(1), p.logits_stride = row_stride(logits);
  check_vocabulary(p.V, "logits");
  p.d2t = door.i32_in(d2t, "d2t", {p.V});
  p.temperature = door.float_in(temperature, "temperature", {p.R});
  p.seeds = door.i64_in(seeds, "seeds", {p.R});
  p.positions = door.i32_in(positions, "positions", {p.R});
  p.ids = door.i32_out(ids, "ids", {p.R, -1});
  p.m = ids.size(1);
  p.scores = door.float_out(scores, "scores", {p.R, p.m});
  door.run(p, "rank_candidates", cpu::rank_candidates);
}

SPECFAST_REGISTER_CPU(rank_candidates)

}  // namespace specfast::bind
