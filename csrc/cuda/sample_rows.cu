// Rows without a mass filter (min-p, top-p) are decided by one read of their logits: each slice
// keeps its best z + G or, under a short top-k, its k best z. Others need their peak first, and a
// second read for masses and noise (row_law.cuh); so do log-probabilities.
#include "cuda/row_law.cuh"

namespace specfast::cuda {
namespace {

constexpr int kShortK = 128;

// A top-k whose slices' own k best are few enough to be listed.
__device__ bool is_short(const RowFilter& f) {
  return f.top_k > 0 && f.top_k <= kShortK && f.top_p == 1.0f && f.min_p == 0.0f;
}
__device__ bool needs_bins(const RowFilter& f) { return f.any() && !is_short(f); }

struct SampleWork : RowWork {
  Rank* drawn;          // [R, slices] the best z + G, of rows without a filter
  BestLists shortlist;  // of z, of rows with a short top-k
  BestLists likeliest;  // of logits, for log-probabilities
  Wide* totals;         // [R] masses at temperature 1, likewise

  SampleWork(const SampleRowsParams& p, Carver& c)
      : RowWork{VocabSlices(p.V)},
        shortlist{slices, kShortK},
        likeliest{slices, p.L < kSlice ? p.L : kSlice} {
    carve(c, p.R, true);
    drawn = c.take<Rank>(p.R * slices.count);
    shortlist.carve(c, p.R);
    if (!p.logprobs) return;
    likeliest.carve(c, p.R);
    totals = c.take<Wide>(p.R);
  }
};

// The slice's best z + G. A warp shares its bar, which starts at the peak's score.
__device__ Rank best_perturbed(const Tile& tile, float temperature, const NoiseKey& key,
                               Rank peak) {
  Rank best = perturbed(rank_of(tempered(score_of(peak), temperature), id_of(peak)), key);
  float bar = score_of(best);
  tile.each_quad([&](int32_t first, const Quad& x) {
    each_perturbed(tempered_quad(x, temperature), first, key, bar,
                   [&](int j, float score) { best = best_of(best, rank_of(score, first + j)); });
    bar = score_of((Rank)__reduce_max_sync(kFullMask, (uint32_t)(best >> 32)) << 32);
  });
  return block_best(best);
}

template <class T>
__global__ void __launch_bounds__(kThreads) scan_slices(SampleRowsParams p, SampleWork work) {
  SPECFAST_SHARED(float4[kSlice / 4], staged);
  int64_t row = work.slices.row_of_block();
  Slice s = work.slices.of_block();
  Tile tile{reinterpret_cast<float*>(staged), s};
  PeakSeen seen;
  tile.stage(logits_row<T>(p, row), [&](int32_t first, Quad& x) { seen.see(first, x); });
  Rank peak = block_best(seen.rank());
  int64_t at = row * work.slices.count + s.index;
  if (threadIdx.x == 0) work.peaks[at] = peak;
  if (peak == kNanRank) return;
  auto each = [&](auto f) { tile.each(f); };
  if (p.logprobs) {
    if (threadIdx.x == 0 && s.index == 0) work.totals[row] = 0;
    if (p.L) work.likeliest.fill(row, s.index, each, score_of(peak), (Wide)p.L);
  }

  float t = p.temperature[row];
  RowFilter filter = filter_of(p, row);
  if (is_greedy(t)) return;
  if (needs_bins(filter)) return work.clear(row, s);
  if (is_short(filter)) {
    tile.each_quad([&](int32_t first, const Quad& x) { tile.put(first, tempered_quad(x, t)); });
    float top = tempered(score_of(peak), t);
    return work.shortlist.fill(row, s.index, each, top, (Wide)filter.top_k);
  }
  Rank best = best_perturbed(tile, t, target_noise(p, row), peak);
  if (threadIdx.x == 0) work.drawn[at] = best;
}

template <class T>
__global__ void __launch_bounds__(kThreads) weigh_slices(SampleRowsParams p, SampleWork work) {
  int64_t row = work.slices.row_of_block();
  if (!p.logprobs && (is_greedy(p.temperature[row]) || !needs_bins(filter_of(p, row)))) return;
  Slice s = work.slices.of_block();
  RowLaw law = row_law(p, row, work.peak(row));
  if (law.status != kRowOk) return;
  float exponent = row_exponent(tempered(score_of(law.peak), 1.0f));
  Wide total = 0;
  auto add_mass = [&](const Quad& x) {
    for (int j = 0; p.logprobs && j < 4; j++)
      total += mass(weight(tempered(x.v[j], 1.0f), exponent));
  };
  if (law.drawn && needs_bins(law.filter))
    weigh_slice<T, true>(p, work, law, row, s, add_mass);
  else if (p.logprobs)
    each_quad<8>(logits_row<T>(p, row), s, [&](int32_t, const Quad& x) { add_mass(x); });
  if (!p.logprobs) return;
  total = block_sum(total);
  if (threadIdx.x == 0) atomicAdd(&work.totals[row], total);
}

template <class T>
__device__ Rank draw(const SampleRowsParams& p, const SampleWork& work, const RowLaw& law,
                     int64_t row, Rank* room) {
  NoiseKey key = target_noise(p, row);
  Rank best = 0;
  if (!law.filter.any()) {
    for (int64_t i = threadIdx.x; i < work.slices.count; i += kThreads)
      best = best_of(best, work.drawn[row * work.slices.count + i]);
  } else if (is_short(law.filter)) {
    auto each = [&](auto f) { work.shortlist.each(row, [&](Rank r, int64_t) { f(r); }); };
    Cut cut = cut_to(each, law.scale.z_max, (Wide)law.filter.top_k);
    each([&](Rank r) {
      if (cut.keeps(nearness(law.scale.z_max, score_of(r)), r))
        best = best_of(best, perturbed(r, key));
    });
  } else {
    BinTokens<T> tokens(p, work, law, row, room);
    Cut cut = SupportFinder<T, true>(work, row, tokens).find(law.filter, law.scale.exponent);
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
      if (cut.keeps(bin, 0)) best = best_of(best, work.bests[row * kBins + bin]);
    if (cut.least)
      tokens.each([&](Rank r) {
        if (r >= cut.least) best = best_of(best, perturbed(r, key));
      });
  }
  return block_best(best);
}

template <class T>
__device__ void write_logprobs(const SampleRowsParams& p, const SampleWork& work, const RowLaw& law,
                               int64_t row, int32_t token) {
  float exponent = row_exponent(tempered(score_of(law.peak), 1.0f));
  auto put = [&](int64_t column, int32_t id, float x) {
    int64_t at = row * (1 + p.L) + column;
    p.logprob_ids[at] = id;
    p.logprobs[at] = id < 0 ? -kInfinity : logprob(x, exponent, work.totals[row]);
  };
  if (threadIdx.x == 0) put(0, token, token < 0 ? 0.0f : widen(logits_row<T>(p, row)[token]));
  if (law.status == kRowOk)
    work.likeliest.write_best(
        row, p.L, [&](int64_t place, Rank r) { put(1 + place, id_of(r), score_of(r)); });
  else
    for (int64_t place = threadIdx.x; place < p.L; place += kThreads) put(1 + place, -1, 0.0f);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) settle_rows(SampleRowsParams p, SampleWork work) {
  SPECFAST_SHARED(Rank[kRoom], room);
  int64_t row = blockIdx.x;
  RowLaw law = row_law(p, row, work.peak(row));
  Rank token = 0;
  if (law.status == kRowOk) token = law.drawn ? draw<T>(p, work, law, row, room) : law.peak;
  if (threadIdx.x == 0) {
    p.tokens[row] = id_of(token);
    p.status[row] = law.status;
  }
  if (p.logprobs) write_logprobs<T>(p, work, law, row, id_of(token));
}

template <class T>
void launch_sample_rows(const SampleRowsParams& p, Stream stream) {
  Carver carver{static_cast<char*>(p.workspace)};
  SampleWork work(p, carver);
  dim3 slices = work.slices.grid(p.R);
  SPECFAST_LAUNCH(scan_slices<T>, slices, kThreads, 0, stream, p, work);
  SPECFAST_LAUNCH(weigh_slices<T>, slices, kThreads, 0, stream, p, work);
  SPECFAST_LAUNCH(settle_rows<T>, dim3((unsigned)p.R), kThreads, 0, stream, p, work);
}

}  // namespace

int64_t workspace_bytes(const SampleRowsParams& p) {
  Carver measure{nullptr};
  SampleWork(p, measure);
  return measure.used;
}

void sample_rows(const SampleRowsParams& p, Stream stream) {
  p.dtype == DType::bf16 ? launch_sample_rows<Bf16>(p, stream)
                         : launch_sample_rows<float>(p, stream);
}

}  // namespace specfast::cuda
