// A row's passes: those of its law, then the noise over its support. A greedy row ends with the
// first, which finds its peak.
#include "cpu/logprobs.h"
#include "cpu/row_law.h"
#include "cpu/scratch.h"
#include "cpu/top_list.h"
#include "cpu/vocab.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

void draw_slice(const SampleRowsParams& p, const RowLaws& laws, int64_t row, Slice s,
                Scored& best) {
  const RowLaw& r = laws[row];
  if (!r.drawn) return;
  NoiseSource noise{{(uint64_t)p.seeds[row], (uint32_t)p.positions[row]}, nullptr};
  TopOne top;
  draw_between(r, laws.logits(row), s.begin, s.end, noise, top);
  best = top.best;
}

int32_t decide(const RowLaw& r, const Scored* best, int64_t num_slices) {
  if (r.status != kRowOk) return -1;
  if (!r.drawn) return r.peak.id;
  TopOne top;
  for (int64_t i = 0; i < num_slices; i++) top.offer(best[i].score, best[i].id);
  return top.best.id;
}

}  // namespace

void sample_rows(const SampleRowsParams& p, ParallelFor parallel_for) {
  FloatEnv env;
  static thread_local Scratch scratch;
  RowLaws laws(p, parallel_for);
  VocabSlices slices = laws.slices;
  Scored* best;  // [R, slices]
  LogprobWork logprobs(p);
  carve_from(scratch, [&](Carver& c) {
    laws.carve(c);
    best = c.take<Scored>(p.R * slices.count);
    if (p.logprobs) logprobs.carve(c);
  });

  laws.plan();
  slices.each(parallel_for, p.R, 2,
              [&](int64_t row, Slice s) { draw_slice(p, laws, row, s, best[slices.at(row, s)]); });
  for (int64_t row = 0; row < p.R; row++) {
    p.status[row] = laws[row].status;
    p.tokens[row] = decide(laws[row], best + row * slices.count, slices.count);
  }
  if (!p.logprobs) return;
  for (int64_t row = 0; row < p.R; row++)
    logprobs.exponents[row] = row_exponent(tempered(laws[row].peak.value, 1.0f));
  logprobs.write(parallel_for);
}

}  // namespace specfast::cpu::SPECFAST_TIER
