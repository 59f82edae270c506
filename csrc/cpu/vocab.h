// Passes over one slice of a row of logits. Slices are the unit of parallel work; nothing that is
// computed from them depends on where they are cut.
#pragma once
#include "core/logit_law.h"
#include "core/noise.h"
#include "core/parallel.h"
#include "core/philox.h"
#include "cpu/simd.h"

namespace specfast::cpu::SPECFAST_TIER {

constexpr int64_t kSlice = 8192;

struct Slice {
  int64_t index, begin, end;
};

struct VocabSlices {
  int64_t vocab, count;

  VocabSlices(int64_t v) : vocab(v), count((v + kSlice - 1) / kSlice) {}
  int64_t at(int64_t row, Slice s) const { return row * count + s.index; }
  Slice operator[](int64_t i) const {
    return {i, i * kSlice, (i + 1) * kSlice < vocab ? (i + 1) * kSlice : vocab};
  }
  // body(row, slice) for every slice of rows [0, rows), `grain` slices at a time.
  template <class Body>
  void each(ParallelFor parallel_for, int64_t rows, int64_t grain, const Body& body) const {
    parallel_for(rows * count, grain, [&](int64_t first, int64_t last) {
      FloatEnv env;
      for (int64_t unit = first; unit < last; unit++) body(unit / count, (*this)[unit % count]);
    });
  }
};

SPECFAST_INLINE Mask16 first_mask(int64_t n) {
  return mask_from_bits(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1);
}

// Lanes >= n are `fill` and not read.
SPECFAST_INLINE F32x16 load_or(const float* p, int64_t n, float fill) {
  if (n >= 16) return load(p);
  if (n <= 0) return broadcast(fill);
  return select(first_mask(n), load_first(p, (int)n), broadcast(fill));
}

// The logit that a greedy row takes: the largest, of equals the lowest id.
struct Peak {
  float value;
  int32_t id;
  bool nan;
};

SPECFAST_INLINE Peak find_peak(const float* x, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 256;  // one comparison with the best so far a block
  Mask16 nan = mask_from_bits(0);
  float best = -kInfinity;
  int64_t best_block = begin;
  for (int64_t block = begin; block < end; block += kBlock) {
    F32x16 top = broadcast(-kInfinity);
    for (int64_t i = block; i < block + kBlock; i += 16) {
      F32x16 v = load_or(x + i, end - i, -kInfinity);
      nan = nan | is_nan(v);
      top = max(v, top);
    }
    if (bits(broadcast(best) < top)) best = reduce_max(top), best_block = block;
  }
  int64_t id = best_block;
  while (id < end - 1 && id < best_block + kBlock - 1 && x[id] != best) id++;
  return {best, (int32_t)id, bits(nan) != 0};
}

// What one row's noise is drawn with, and for which ids: target ids are the row's own, or mapped.
struct NoiseSource {
  NoiseKey key;
  const int32_t* target_ids;  // [V] or null
};

// The words of target ids first .. first + 63, first a multiple of 64, from sixteen counters.
SPECFAST_INLINE void noise_of_block(const NoiseSource& s, int64_t first, I32x16 words[4]) {
  I32x16 lane = iota();
  // Lane 4q + r holds counter 4r + q, so that transposing quads puts ids in order.
  I32x16 counter = shift_left<2>(lane & broadcast(3)) + shift_right_logical<2>(lane);
  PhiloxBlock<I32x16> block = keyed_noise(counter + broadcast((int32_t)(first / 4)), s.key);
  transpose_quads(block.x0, block.x1, block.x2, block.x3);
  words[0] = block.x0, words[1] = block.x1, words[2] = block.x2, words[3] = block.x3;
}

// The word of each lane's target id, whatever they are.
SPECFAST_INLINE I32x16 noise_of_ids(const NoiseSource& s, I32x16 ids) {
  PhiloxBlock<I32x16> block = keyed_noise(shift_right_logical<2>(ids), s.key);
  I32x16 lane = ids & broadcast(3);
  I32x16 low = select(lane == broadcast(0), block.x0, block.x1);
  I32x16 high = select(lane == broadcast(2), block.x2, block.x3);
  return select(lane < broadcast(2), low, high);
}

SPECFAST_INLINE I32x16 target_ids_at(const NoiseSource& s, int64_t i, int64_t left) {
  if (!s.target_ids) return iota() + broadcast((int32_t)i);
  if (left >= 16) return load(s.target_ids + i);
  int32_t ids[16] = {};
  for (int64_t lane = 0; lane < left; lane++) ids[lane] = s.target_ids[i + lane];
  return load(ids);
}

// Offers every (score, target id) with score >= sink.bar() whose lane is set.
template <class Sink>
SPECFAST_INLINE void offer_lanes(F32x16 score, I32x16 ids, Mask16 lanes, Sink& sink) {
  uint32_t hits = bits(lanes & (broadcast(sink.bar()) <= score));
  if (!hits) return;
  float scores[16];
  int32_t target[16];
  store(scores, score);
  store(target, ids);
  for (; hits; hits &= hits - 1) {
    int lane = __builtin_ctz(hits);
    sink.offer(scores[lane], target[lane]);
  }
}

// Plain scores: the logits themselves.
template <class Sink>
SPECFAST_INLINE void rank_plain(const float* x, int64_t begin, int64_t end, const NoiseSource& s,
                                Sink& sink) {
  for (int64_t i = begin; i < end; i += 16) {
    F32x16 v = load_or(x + i, end - i, -kInfinity);
    Mask16 lanes = (broadcast(-kInfinity) < v) & (broadcast(sink.bar()) <= v);
    if (bits(lanes)) offer_lanes(v, target_ids_at(s, i, end - i), lanes, sink);
  }
}

// Scores z + G. `z_at(i)` gives the z of tokens i .. i + 15, -inf past the end and for what is not
// in the support; a token that can't reach the bar costs no noise: rounding is monotone, so z +
// bound < bar decides it whatever was seen before.
template <class ZAt, class Sink>
SPECFAST_INLINE void rank_perturbed(int64_t begin, int64_t end, const NoiseSource& s, ZAt z_at,
                                    Sink& sink) {
  for (int64_t block = begin; block < end; block += 64) {
    F32x16 z[4], bar = broadcast(sink.bar());
    Mask16 live[4];
    uint32_t any = 0;
    for (int q = 0; q < 4; q++) {
      z[q] = z_at(block + 16 * q);
      live[q] = (broadcast(-kInfinity) < z[q]) & ~(z[q] + broadcast(kMaxGumbel) < bar);
      any |= bits(live[q]);
    }
    if (!any) continue;
    I32x16 words[4];
    if (!s.target_ids) noise_of_block(s, block, words);
    for (int q = 0; q < 4; q++) {
      if (!bits(live[q])) continue;
      int64_t i = block + 16 * q;
      I32x16 ids = target_ids_at(s, i, end - i);
      F32x16 v = uniform(s.target_ids ? noise_of_ids(s, ids) : words[q]);
      live[q] = live[q] & ~(z[q] + gumbel_bound(v) < broadcast(sink.bar()));
      if (bits(live[q])) offer_lanes(z[q] + gumbel(v), ids, live[q], sink);
    }
  }
}

}  // namespace specfast::cpu::SPECFAST_TIER
