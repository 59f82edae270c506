// Gumbel top-m: the m best of z + G are m draws from softmax(z) without replacement.
#include "cpu/row_law.h"
#include "cpu/scratch.h"
#include "cpu/top_list.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

// The slice of the law, as -inf outside the support.
void write_law(const RowLaw& r, const float* x, Slice s, float* law) {
  for (int64_t i = s.begin; i < s.end; i += 16) {
    F32x16 z = r.drawn ? supported_z(r, x, i, s.end) : load_or(x + i, s.end - i, -kInfinity);
    store_first(law + i, z, (int)(s.end - i < 16 ? s.end - i : 16));
  }
}

void draw_slice(const DrawCandidatesParams& p, const RowLaws& laws, int64_t row, Slice s,
                TopList& list) {
  const RowLaw& r = laws[row];
  const float* x = laws.logits(row);
  NoiseSource noise{step_noise((uint64_t)p.seeds[row], (uint32_t)p.positions[row], kNoiseDraft,
                               p.nodes[row], (uint32_t)p.roots[row]),
                    p.d2t};
  write_law(r, x, s, p.laws + row * p.V);
  if (r.status != kRowOk) return;
  if (!r.drawn) return rank_plain(x, s.begin, s.end, noise, list);
  rank_perturbed(
      s.begin, s.end, noise, [&](int64_t i) { return supported_z(r, x, i, s.end); }, list);
}

}  // namespace

void draw_candidates(const DrawCandidatesParams& p, ParallelFor parallel_for) {
  FloatEnv env;
  static thread_local Scratch scratch;
  RowLaws laws(p, parallel_for);
  TopLists lists{laws.slices, p.m, nullptr, nullptr};
  carve_from(scratch, [&](Carver& c) {
    laws.carve(c);
    lists.carve(c, p.R);
  });

  laws.plan();
  laws.slices.each(parallel_for, p.R, 2,
                   [&](int64_t row, Slice s) { draw_slice(p, laws, row, s, lists.start(row, s)); });
  for (int64_t row = 0; row < p.R; row++) {
    TopList best = lists.merged(row);
    for (int64_t j = 0; j < p.m; j++) p.ids[row * p.m + j] = j < best.size ? best.items[j].id : -1;
  }
}

}  // namespace specfast::cpu::SPECFAST_TIER
