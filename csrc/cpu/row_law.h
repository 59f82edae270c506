// What a row is drawn from: its peak; where it has a filter, its masses and the boundary of its
// support.
#pragma once
#include "cpu/row_filter.h"
#include "cpu/scratch.h"
#include "cpu/vocab.h"
#include "params.h"

namespace specfast::cpu::SPECFAST_TIER {

// Rows whose candidates are held at once.
constexpr int64_t kFilterRows = 16;
// Candidates are first sought this close to the largest z; most supports lie within.
constexpr float kNearPeak = 8.0f;

struct RowLaw {
  Peak peak;
  RowFilter filter;
  RowScale scale;
  Support support;
  int32_t status;
  bool drawn;  // has noise: not greedy, and no status
};

// z of tokens i .. i + 15 of a row's logits x [end], -inf outside its support.
SPECFAST_INLINE F32x16 supported_z(const RowLaw& r, const float* x, int64_t i, int64_t end) {
  F32x16 z = tempered(load_or(x + i, end - i, -kInfinity), broadcast(r.scale.temperature));
  F32x16 boundary = broadcast(r.support.z);
  Mask16 past = broadcast(r.support.last_id) < iota() + broadcast((int32_t)i);
  return select((boundary < z) | ((z == boundary) & ~past), z, broadcast(-kInfinity));
}

// Offers the sink z + G of tokens [begin, end) that the row's support holds.
template <class Sink>
SPECFAST_INLINE void draw_between(const RowLaw& r, const float* x, int64_t begin, int64_t end,
                                  const NoiseSource& noise, Sink& sink) {
  // Starting from the likeliest token raises the bar at once; its own part meets it again.
  if (r.support.holds(r.scale.z_max, r.peak.id))
    sink.offer(r.scale.z_max + gumbel_of_id(noise.key, (uint32_t)r.peak.id), r.peak.id);
  rank_perturbed(begin, end, noise, [&](int64_t i) { return supported_z(r, x, i, end); }, sink);
}

// The laws of all rows of a call.
struct RowLaws {
  const LogitRows& p;
  ParallelFor parallel_for;
  VocabSlices slices;
  RowLaw* rows = nullptr;       // [R]
  Peak* peaks = nullptr;        // [R, slices]
  int64_t* filtered = nullptr;  // [R] rows with a filter
  CandidateStore store;

  RowLaws(const LogitRows& rows_of, ParallelFor pool)
      : p(rows_of),
        parallel_for(pool),
        slices(rows_of.V),
        store{slices, nullptr, nullptr, nullptr, nullptr} {}

  void carve(Carver& c) {
    rows = c.take<RowLaw>(p.R);
    filtered = c.take<int64_t>(p.R);
    peaks = c.take<Peak>(p.R * slices.count);
    store.carve(c, p.R < kFilterRows ? p.R : kFilterRows);
  }
  const RowLaw& operator[](int64_t row) const { return rows[row]; }
  const float* logits(int64_t row) const { return p.logits + row * p.logits_stride; }

  void plan() const {
    slices.each(parallel_for, p.R, 4, [&](int64_t row, Slice s) {
      peaks[slices.at(row, s)] = find_peak(logits(row), s.begin, s.end);
    });
    int64_t n = 0;
    for (int64_t row = 0; row < p.R; row++) {
      plan_row(row);
      if (rows[row].drawn && rows[row].filter.any()) filtered[n++] = row;
    }
    for (int64_t i = 0; i < n; i += kFilterRows)
      filter(filtered + i, n - i < kFilterRows ? n - i : kFilterRows);
  }

 private:
  Peak row_peak(int64_t row) const {
    const Peak* of_slice = peaks + row * slices.count;
    Peak peak = of_slice[0];
    for (int64_t i = 1; i < slices.count; i++) {
      bool nan = peak.nan || of_slice[i].nan;
      if (peak.value < of_slice[i].value) peak = of_slice[i];
      peak.nan = nan;
    }
    return peak;
  }
  void plan_row(int64_t row) const {
    RowLaw& r = rows[row];
    r.peak = row_peak(row);
    r.status = r.peak.nan ? kRowNan : r.peak.value == -kInfinity ? kRowNoSupport : kRowOk;
    r.drawn = r.status == kRowOk && !is_greedy(p.temperature[row]);
    r.support = {};
    r.filter = row_filter(p.top_k[row], p.top_p[row], p.min_p[row], p.V);
    r.scale = row_scale(r.peak.value, p.temperature[row], r.filter);
  }
  // The supports of up to kFilterRows rows.
  void filter(const int64_t* chosen, int64_t n) const {
    slices.each(parallel_for, n, 2, [&](int64_t held, Slice s) {
      const RowLaw& r = rows[chosen[held]];
      // min-p leaves few candidates by itself.
      float cut = r.filter.min_p > 0.0f ? -kInfinity : r.scale.z_max - kNearPeak;
      store.gather(held, logits(chosen[held]), s, r.scale, cut);
    });
    parallel_for(n, 1, [&](int64_t first, int64_t last) {
      FloatEnv env;
      for (int64_t held = first; held < last; held++) {
        RowLaw& r = rows[chosen[held]];
        r.support = store.support(held, logits(chosen[held]), r.scale, r.filter);
      }
    });
  }
};

}  // namespace specfast::cpu::SPECFAST_TIER
