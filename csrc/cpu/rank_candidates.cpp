#include "cpu/scratch.h"
#include "cpu/top_list.h"
#include "cpu/vocab.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

void rank_slice(const RankCandidatesParams& p, int64_t row, Slice s, TopList& list) {
  const float* x = p.logits + row * p.logits_stride;
  NoiseSource noise{(uint64_t)p.seeds[row], (uint32_t)p.positions[row], p.d2t};
  float t = p.temperature[row];
  if (is_greedy(t)) return rank_plain(x, s.begin, s.end, noise, list);
  auto keep = [](F32x16, int64_t) { return mask_from_bits(0xffff); };
  rank_perturbed(x, s.begin, s.end, t, noise, keep, list);
}

void write_row(const RankCandidatesParams& p, int64_t row, const TopList& best) {
  for (int64_t j = 0; j < p.m; j++) {
    bool found = j < best.size;
    p.ids[row * p.m + j] = found ? best.items[j].id : -1;
    p.scores[row * p.m + j] = found ? best.items[j].score : -kInfinity;
  }
}

}  // namespace

void rank_candidates(const RankCandidatesParams& p, ParallelFor parallel_for) {
  static thread_local Scratch scratch;
  VocabSlices slices{p.V};
  int64_t units = p.R * slices.count;
  TopList* lists;
  Scored* items;
  auto carve = [&](Carver c) {
    lists = c.take<TopList>(units);
    items = c.take<Scored>(units * p.m);
    return c.used;
  };
  carve({scratch.reserve(carve({nullptr}))});
  slices.each(parallel_for, p.R, 2, [&](int64_t row, Slice s) {
    int64_t at = slices.at(row, s);
    lists[at] = {items + at * p.m, p.m};
    rank_slice(p, row, s, lists[at]);
  });
  for (int64_t row = 0; row < p.R; row++) {
    TopList best = lists[row * slices.count];
    for (int64_t i = 1; i < slices.count; i++) best.merge(lists[row * slices.count + i]);
    write_row(p, row, best);
  }
}

}  // namespace specfast::cpu::SPECFAST_TIER
