#include "cpu/scratch.h"
#include "cpu/top_list.h"
#include "cpu/vocab.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

void rank_slice(const RankCandidatesParams& p, int64_t row, Slice s, TopList& list) {
  const float* x = p.logits + row * p.logits_stride;
  NoiseSource noise{{(uint64_t)p.seeds[row], (uint32_t)p.positions[row]}, p.d2t};
  float t = p.temperature[row];
  if (is_greedy(t)) return rank_plain(x, s.begin, s.end, noise, list);
  auto z_at = [&](int64_t i) {
    F32x16 v = load_or(x + i, s.end - i, -kInfinity), none = broadcast(-kInfinity);
    return select(none < v, tempered(v, broadcast(t)), none);  // a NaN is no candidate
  };
  rank_perturbed(s.begin, s.end, noise, z_at, list);
}

void write_row(const RankCandidatesParams& p, int64_t row, const TopList& best) {
  for (int64_t j = 0; j < p.m; j++) {
    bool found = j < best.size;
    p.ids[row * p.m + j] = found ? best.items[j].id : -1;
    p.scores[row * p.m + j] = found ? best.items[j].score + 0.0f : -kInfinity;  // no -0.0
  }
}

}  // namespace

void rank_candidates(const RankCandidatesParams& p, ParallelFor parallel_for) {
  static thread_local Scratch scratch;
  TopLists lists{{p.V}, p.m, nullptr, nullptr};
  carve_from(scratch, [&](Carver& c) { lists.carve(c, p.R); });
  lists.slices.each(parallel_for, p.R, 2,
                    [&](int64_t row, Slice s) { rank_slice(p, row, s, lists.start(row, s)); });
  for (int64_t row = 0; row < p.R; row++) write_row(p, row, lists.merged(row));
}

}  // namespace specfast::cpu::SPECFAST_TIER
