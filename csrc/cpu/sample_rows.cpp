// A row's passes: its peak; where it has a filter, its masses and the boundary of its support; then
// the noise over that support. A greedy row ends with the first.
#include "cpu/logprobs.h"
#include "cpu/row_filter.h"
#include "cpu/scratch.h"
#include "cpu/top_list.h"
#include "cpu/vocab.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

// Rows whose candidates are held at once.
constexpr int64_t kFilterRows = 16;
// Candidates are first sought this close to the largest z; most supports lie within.
constexpr float kNearPeak = 8.0f;

struct Row {
  Peak peak;
  RowFilter filter;
  RowScale scale;
  Support support;
  NoiseSource noise;
  bool drawn;  // has noise: not greedy, and no status
};

struct Work {
  const SampleRowsParams& p;
  ParallelFor parallel_for;
  VocabSlices slices;
  Row* rows;          // [R]
  Peak* peaks;        // [R, slices]
  Scored* best;       // [R, slices]
  int64_t* filtered;  // [R] rows with a filter

  const float* logits(int64_t row) const { return p.logits + row * p.logits_stride; }
};

void find_peaks(const Work& w) {
  w.slices.each(w.parallel_for, w.p.R, 4, [&](int64_t row, Slice s) {
    w.peaks[w.slices.at(row, s)] = find_peak(w.logits(row), s.begin, s.end);
  });
}

Peak row_peak(const Work& w, int64_t row) {
  const Peak* peaks = w.peaks + row * w.slices.count;
  Peak peak = peaks[0];
  for (int64_t i = 1; i < w.slices.count; i++) {
    bool nan = peak.nan || peaks[i].nan;
    if (peak.value < peaks[i].value) peak = peaks[i];
    peak.nan = nan;
  }
  return peak;
}

// Compared so that a NaN turns its filter off.
RowFilter row_filter(const SampleRowsParams& p, int64_t row) {
  int64_t k = p.top_k[row];
  float top_p = p.top_p[row], min_p = p.min_p[row];
  return {k > 0 && k < p.V ? k : 0, top_p < 1.0f ? top_p : 1.0f, min_p > 0.0f ? min_p : 0.0f};
}

void plan_row(const Work& w, int64_t row) {
  const SampleRowsParams& p = w.p;
  Row& r = w.rows[row];
  r.peak = row_peak(w, row);
  p.status[row] = r.peak.nan ? kRowNan : r.peak.value == -kInfinity ? kRowNoSupport : kRowOk;
  r.drawn = p.status[row] == kRowOk && !is_greedy(p.temperature[row]);
  r.support = {};
  r.noise = {(uint64_t)p.seeds[row], (uint32_t)p.positions[row], nullptr};
  r.filter = row_filter(p, row);
  r.scale = row_scale(r.peak.value, p.temperature[row], r.filter);
}

int64_t list_filtered(const Work& w) {
  int64_t n = 0;
  for (int64_t row = 0; row < w.p.R; row++)
    if (w.rows[row].drawn && w.rows[row].filter.any()) w.filtered[n++] = row;
  return n;
}

// The supports of up to kFilterRows rows.
void filter_rows(const Work& w, const int64_t* rows, int64_t n, CandidateStore& store) {
  w.slices.each(w.parallel_for, n, 2, [&](int64_t held, Slice s) {
    const Row& r = w.rows[rows[held]];
    // min-p leaves few candidates by itself.
    float cut = r.filter.min_p > 0.0f ? -kInfinity : r.scale.z_max - kNearPeak;
    store.gather(held, w.logits(rows[held]), s, r.scale, cut);
  });
  w.parallel_for(n, 1, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t held = first; held < last; held++) {
      Row& r = w.rows[rows[held]];
      r.support = store.support(held, w.logits(rows[held]), r.scale, r.filter);
    }
  });
}

void filter_all(const Work& w, CandidateStore& store) {
  int64_t n = list_filtered(w);
  for (int64_t i = 0; i < n; i += kFilterRows)
    filter_rows(w, w.filtered + i, n - i < kFilterRows ? n - i : kFilterRows, store);
}

void draw_slice(const Work& w, int64_t row, Slice s) {
  const Row& r = w.rows[row];
  if (!r.drawn) return;
  TopOne top;
  // Starting from the likeliest token raises the bar at once; its own slice meets it again.
  if (r.support.holds(r.scale.z_max, r.peak.id))
    top.offer(r.scale.z_max + gumbel_of_id(r.noise, r.peak.id), r.peak.id);
  auto keep = [&](F32x16 z, int64_t first_id) {
    F32x16 boundary = broadcast(r.support.z);
    Mask16 past = broadcast(r.support.last_id) < iota() + broadcast((int32_t)first_id);
    return (boundary < z) | ((z == boundary) & ~past);
  };
  rank_perturbed(w.logits(row), s.begin, s.end, r.scale.temperature, r.noise, keep, top);
  w.best[w.slices.at(row, s)] = top.best;
}

int32_t decide(const Work& w, int64_t row) {
  if (w.p.status[row] != kRowOk) return -1;
  if (!w.rows[row].drawn) return w.rows[row].peak.id;
  TopOne top;
  for (int64_t i = 0; i < w.slices.count; i++) {
    Scored best = w.best[row * w.slices.count + i];
    top.offer(best.score, best.id);
  }
  return top.best.id;
}

}  // namespace

void sample_rows(const SampleRowsParams& p, ParallelFor parallel_for) {
  FloatEnv env;
  static thread_local Scratch scratch;
  Work w{p, parallel_for, {p.V}, nullptr, nullptr, nullptr, nullptr};
  CandidateStore store{w.slices, nullptr, nullptr, nullptr, nullptr};
  LogprobWork law{p, w.slices, nullptr, nullptr, nullptr, nullptr};
  auto carve = [&](Carver c) {
    w.rows = c.take<Row>(p.R);
    w.filtered = c.take<int64_t>(p.R);
    w.peaks = c.take<Peak>(p.R * w.slices.count);
    w.best = c.take<Scored>(p.R * w.slices.count);
    if (p.logprobs) law.carve(c);
    store.carve(c, p.R < kFilterRows ? p.R : kFilterRows);
    return c.used;
  };
  carve({scratch.reserve(carve({nullptr}))});

  find_peaks(w);
  for (int64_t row = 0; row < p.R; row++) plan_row(w, row);
  filter_all(w, store);
  w.slices.each(parallel_for, p.R, 2, [&](int64_t row, Slice s) { draw_slice(w, row, s); });
  for (int64_t row = 0; row < p.R; row++) p.tokens[row] = decide(w, row);
  if (!p.logprobs) return;
  for (int64_t row = 0; row < p.R; row++)
    law.exponents[row] = row_exponent(tempered(w.rows[row].peak.value, 1.0f));
  law.write(parallel_for);
}

}  // namespace specfast::cpu::SPECFAST_TIER
