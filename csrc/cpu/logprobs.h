// Log-probabilities under the logits as given: temperature 1, no filter.
#pragma once
#include "core/logit_law.h"
#include "cpu/row_filter.h"
#include "cpu/scratch.h"
#include "cpu/top_list.h"
#include "cpu/vocab.h"
#include "params.h"

namespace specfast::cpu::SPECFAST_TIER {

SPECFAST_INLINE uint64_t mass_of_slice(const float* x, Slice s, float exponent) {
  MassSum sum;
  for (int64_t i = s.begin; i < s.end; i += 16) {
    F32x16 z = tempered(load_or(x + i, s.end - i, -kInfinity), broadcast(1.0f));
    sum.add(weight(z, broadcast(exponent)));
  }
  return sum.total();
}

struct LogprobWork {
  const SampleRowsParams& p;
  VocabSlices slices;
  float* exponents = nullptr;  // [R]
  uint64_t* masses = nullptr;  // [R, slices]
  TopLists likeliest;          // L a row

  explicit LogprobWork(const SampleRowsParams& params)
      : p(params), slices(params.V), likeliest{slices, params.L, nullptr, nullptr} {}

  void carve(Carver& c) {
    exponents = c.take<float>(p.R);
    masses = c.take<uint64_t>(p.R * slices.count);
    likeliest.carve(c, p.R);
  }
  const float* logits(int64_t row) const { return p.logits + row * p.logits_stride; }
  void scan(int64_t row, Slice s) const {
    masses[slices.at(row, s)] = mass_of_slice(logits(row), s, exponents[row]);
    rank_plain(logits(row), s.begin, s.end, {{}, nullptr}, likeliest.start(row, s));
  }
  void put(int64_t row, int64_t column, int32_t id, uint64_t total) const {
    int64_t at = row * (1 + p.L) + column;
    p.logprob_ids[at] = id;
    p.logprobs[at] = id < 0 ? -kInfinity : logprob(logits(row)[id], exponents[row], total);
  }
  void write_row(int64_t row) const {
    uint64_t total = 0;
    TopList best{nullptr, 0};
    if (p.status[row] == kRowOk) {
      best = likeliest.merged(row);
      for (int64_t i = 0; i < slices.count; i++) total += masses[row * slices.count + i];
    }
    put(row, 0, p.tokens[row], total);
    for (int64_t j = 0; j < p.L; j++) put(row, 1 + j, j < best.size ? best.items[j].id : -1, total);
  }
  // After the tokens are decided; `exponents` are the rows' own at temperature 1.
  void write(ParallelFor parallel_for) const {
    slices.each(parallel_for, p.R, 2, [&](int64_t row, Slice s) {
      if (p.status[row] == kRowOk) scan(row, s);
    });
    for (int64_t row = 0; row < p.R; row++) write_row(row);
  }
};

}  // namespace specfast::cpu::SPECFAST_TIER
