// What a row is drawn from: its peak; where it has a filter, the counts and masses of its bins and
// the boundary of its support. Peaks need one read of the logits, bins a second, and the boundary
// another of those slices that have tokens in the bin where it falls.
#pragma once
#include "core/carver.h"
#include "cuda/select.cuh"

namespace specfast::cuda {

struct RowLaw {
  Rank peak;
  RowFilter filter;
  RowScale scale;
  Cut support;  // of what min-p keeps
  int32_t status;
  bool drawn;  // has noise: not greedy, and no status

  __device__ bool passes_min_p(float z) const {
    return -kInfinity < z &&
           (!(filter.min_p > 0.0f) || scale.min_weight <= weight(z, scale.exponent));
  }
  __device__ bool holds(float z, int32_t id) const {
    return passes_min_p(z) && support.keeps(nearness(scale.z_max, z), rank_of(z, id));
  }
  // The z of four logits, -inf outside the support.
  __device__ Quad supported(int32_t first, const Quad& x) const {
    Quad z = tempered_quad(x, scale.temperature);
    for (int j = 0; j < 4; j++)
      if (!holds(z.v[j], first + j)) z.v[j] = -kInfinity;
    return z;
  }
};

__device__ inline RowFilter filter_of(const LogitRows& p, int64_t row) {
  return row_filter(p.top_k[row], p.top_p[row], p.min_p[row], p.V);
}

__device__ inline RowLaw row_law(const LogitRows& p, int64_t row, Rank peak) {
  RowLaw law{};
  float x_max = score_of(peak), t = p.temperature[row];
  law.peak = peak;
  law.status = peak == kNanRank ? kRowNan : x_max == -kInfinity ? kRowNoSupport : kRowOk;
  law.drawn = law.status == kRowOk && !is_greedy(t);
  law.filter = filter_of(p, row);
  law.support = kKeepAll;
  if (law.drawn) law.scale = row_scale(x_max, t, law.filter);
  return law;
}

__device__ inline NoiseKey target_noise(const LogitRows& p, int64_t row) {
  return {(uint64_t)p.seeds[row], (uint32_t)p.positions[row]};
}

// The best logit that one thread saw, ids ascending.
struct PeakSeen {
  float best = -kInfinity;
  int32_t id = -1;
  bool nan = false;

  __device__ void see(int32_t first, const Quad& x) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      nan |= x.v[j] != x.v[j];
      if (x.v[j] > best) best = x.v[j], id = first + j;
    }
  }
  __device__ Rank rank() const { return nan ? kNanRank : rank_of(best, id); }
};

struct RowWork {
  VocabSlices slices;
  Rank* peaks = nullptr;         // [R, slices]
  unsigned* occupied = nullptr;  // [R, slices, kBins / 32] bits: bins a slice has tokens in
  unsigned* counts = nullptr;    // [R, kBins] of what min-p keeps
  Wide* masses = nullptr;        // [R, kBins]
  Rank* bests = nullptr;         // [R, kBins] the best z + G of each, or null

  void carve(Carver& c, int64_t rows, bool draws) {
    peaks = c.take<Rank>(rows * slices.count);
    occupied = c.take<unsigned>(rows * slices.count * (kBins / 32));
    counts = c.take<unsigned>(rows * kBins);
    masses = c.take<Wide>(rows * kBins);
    if (draws) bests = c.take<Rank>(rows * kBins);
  }
  __device__ Rank peak(int64_t row) const {
    Rank best = 0;
    for (int64_t i = threadIdx.x; i < slices.count; i += kThreads)
      best = best_of(best, peaks[row * slices.count + i]);
    return block_best(best);
  }
  // This slice's share of the work.
  __device__ void clear(int64_t row, const Slice& s) const {
    for (int64_t bin = s.index * kThreads + threadIdx.x; bin < kBins;
         bin += slices.count * kThreads) {
      counts[row * kBins + bin] = 0;
      masses[row * kBins + bin] = 0;
      if (bests) bests[row * kBins + bin] = 0;
    }
  }
};

// Adds one slice to the bins of its row, whose peak is known. Where tokens are drawn, each bin also
// learns its best z + G: as the boundary falls within one bin, that decides all others.
// also(quad): what else the caller wants of this one read.
template <class T, bool kDraws, class Also>
__device__ void weigh_slice(const LogitRows& p, const RowWork& work, const RowLaw& law, int64_t row,
                            const Slice& s, const Also& also) {
  SPECFAST_SHARED(unsigned[kBins], counts);
  SPECFAST_SHARED(Wide[kBins], masses);
  SPECFAST_SHARED(Rank[kDraws ? kBins : 1], bests);
  for (int i = threadIdx.x; i < kBins; i += kThreads) {
    counts[i] = 0, masses[i] = 0;
    if (kDraws) bests[i] = 0;
  }
  __syncthreads();
  const RowScale& scale = law.scale;
  NoiseKey key = target_noise(p, row);
  // The peak is in the nearest bin, so a lower score is of no use in any.
  float bar = kDraws ? scale.z_max + gumbel_of_id(key, (uint32_t)id_of(law.peak)) : 0.0f;
  each_quad<8>(logits_row<T>(p, row), s, [&](int32_t first, const Quad& x) {
    also(x);
    Quad z = tempered_quad(x, scale.temperature);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float w = weight(z.v[j], scale.exponent);
      if (!(-kInfinity < z.v[j] && scale.min_weight <= w)) {
        z.v[j] = -kInfinity;
        continue;
      }
      int bin = nearness(scale.z_max, z.v[j]);
      atomicAdd(&counts[bin], 1u);
      if (Wide m = mass(w)) atomicAdd(&masses[bin], m);
    }
    if (kDraws)
      each_perturbed(z, first, key, bar, [&](int j, float score) {
        int bin = nearness(scale.z_max, z.v[j]);
        atomicMax(&bests[bin], rank_of(score, first + j));
        if (bin == kBins - 1) bar = max(bar, score);
      });
  });
  __syncthreads();
  unsigned* occupied = work.occupied + (row * work.slices.count + s.index) * (kBins / 32);
  for (int i = threadIdx.x; i < kBins; i += kThreads) {
    unsigned full = __ballot_sync(kFullMask, counts[i] != 0);
    if (i % 32 == 0) occupied[i / 32] = full;
    if (!counts[i]) continue;
    atomicAdd(&work.counts[row * kBins + i], counts[i]);
    if (masses[i]) atomicAdd(&work.masses[row * kBins + i], masses[i]);
    if (kDraws && bests[i]) atomicMax(&work.bests[row * kBins + i], bests[i]);
  }
}

constexpr int kRoom = 4096;

// The tokens of one bin of a row, from the slices that have any: listed, if there is room.
template <class T>
class BinTokens {
 public:
  __device__ BinTokens(const LogitRows& p, const RowWork& work, const RowLaw& law, int64_t row,
                       Rank* room)
      : logits_(logits_row<T>(p, row)),
        slices_(work.slices),
        law_(law),
        occupied_(work.occupied + row * work.slices.count * (kBins / 32)),
        room_(room) {}

  __device__ void gather(int bin, unsigned count) {
    SPECFAST_SHARED(int, size);
    bin_ = bin, listed_ = 0;
    if (threadIdx.x == 0) size = 0;
    __syncthreads();
    if (count > kRoom) {
      listed_ = -1;
      return;
    }
    reread([&](Rank r) { room_[atomicAdd(&size, 1)] = r; });
    __syncthreads();
    listed_ = size;
    __syncthreads();
  }
  // f(rank) for this thread's share.
  template <class F>
  __device__ void each(F f) const {
    if (listed_ < 0) return reread(f);
    for (int i = threadIdx.x; i < listed_; i += kThreads) f(room_[i]);
  }

 private:
  template <class F>
  __device__ void reread(F f) const {
    for (int64_t i = 0; i < slices_.count; i++) {
      if (!(occupied_[i * (kBins / 32) + bin_ / 32] >> bin_ % 32 & 1)) continue;
      each_quad<8>(logits_, slices_[i], [&](int32_t first, const Quad& x) {
        for (int j = 0; j < 4; j++) {
          float z = tempered(x.v[j], law_.scale.temperature);
          if (law_.passes_min_p(z) && nearness(law_.scale.z_max, z) == bin_)
            f(rank_of(z, first + j));
        }
      });
    }
  }

  const T* logits_;
  VocabSlices slices_;
  const RowLaw& law_;
  const unsigned* occupied_;
  Rank* room_;  // [kRoom]
  int bin_ = 0, listed_ = 0;
};

// The support of one row, of what min-p keeps: top-k, then top-p of what that leaves.
template <class T, bool kDraws>
class SupportFinder {
 public:
  __device__ SupportFinder(const RowWork& work, int64_t row, BinTokens<T>& tokens)
      : counts_(work.counts + row * kBins), masses_(work.masses + row * kBins), tokens_(tokens) {}

  __device__ Cut find(const RowFilter& f, float exponent) {
    Wide all = 0;
    for (int i = threadIdx.x; i < kBins; i += kThreads) all += counts_[i];
    all = block_sum(all);
    if (f.top_k && (Wide)f.top_k < all) cut(counts_, (Wide)f.top_k, CountOne{});
    if (f.top_p < 1.0f) {
      CountMass measure{exponent};
      cut(masses_, mass_share(f.top_p, kept_mass(measure)), measure);
    }
    return kept_;
  }

 private:
  // The target is at most what an earlier cut left, so this one ends no later. And a top-p below 1
  // leaves some mass beyond its boundary, so that never falls where tokens have none.
  template <class Bin, class Measure>
  __device__ void cut(const Bin* measures, Wide target, const Measure& measure) {
    Found found = find_bin<kBins>(measures, target);
    Rank least = 0;
    // A draw needs no boundary in the first bin: nobody so far down can win, or has any mass.
    if (!found.takes_all && !(kDraws && found.bin == 0)) {
      tokens_.gather(found.bin, counts_[found.bin]);
      least = shortest_prefix([&](auto f) { tokens_.each(f); }, found.rest, measure);
    }
    kept_ = {found.bin, least};
  }
  __device__ Wide kept_mass(const CountMass& measure) const {
    Wide sum = 0;
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
      if (bin > kept_.bin || (bin == kept_.bin && !kept_.least)) sum += masses_[bin];
    if (kept_.least)
      tokens_.each([&](Rank r) {
        if (r >= kept_.least) sum += measure(r);
      });
    return block_sum(sum);
  }

  const unsigned* counts_;
  const Wide* masses_;
  BinTokens<T>& tokens_;
  Cut kept_ = kKeepAll;
};

}  // namespace specfast::cuda
