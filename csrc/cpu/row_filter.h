// min-p, top-k and top-p without a sort: candidates near the top of the row are gathered, and the
// boundary is found among them digit by digit. Order is z descending, then id ascending, and every
// filter keeps a prefix of it, so a support is a boundary z and the last id kept at it.
#pragma once
#include "core/logit_law.h"
#include "core/sort_key.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/vocab.h"

namespace specfast::cpu::SPECFAST_TIER {

struct Support {
  float z = -kInfinity;
  int32_t last_id = -1;

  bool holds(float of_z, int32_t id) const { return of_z > z || (of_z == z && id <= last_id); }
};

// Tokens of one row in id order.
struct Candidates {
  float* z;
  float* weight;
  int32_t* id;
  int64_t size;
};

struct SliceMass {
  uint64_t mass;  // of all that min-p keeps
  int64_t size;   // candidates: those at or above the cut
  bool all;       // the cut left out nothing that min-p keeps
};

SPECFAST_INLINE uint64_t sum_lanes(I32x16 x) {
  int32_t lanes[16];
  store(lanes, x);
  uint64_t sum = 0;
  for (int i = 0; i < 16; i++) sum += (uint64_t)lanes[i];
  return sum;
}

// Sums floor(weight 2^40) of up to kSlice weights, as two halves of 20 bits a lane.
struct MassSum {
  I32x16 high = broadcast(0), low = broadcast(0);

  void add(F32x16 weight) {
    F32x16 scaled = weight * broadcast(0x1p20f);
    I32x16 whole = truncate_i32(scaled);
    high = high + whole;
    low = low + truncate_i32((scaled - to_f32(whole)) * broadcast(0x1p20f));
  }
  uint64_t total() const { return (sum_lanes(high) << 20) + sum_lanes(low); }
};

SPECFAST_INLINE void append(Candidates& c, F32x16 z, F32x16 weight, int64_t first_id,
                            uint32_t lanes) {
  if (lanes == 0xffff) {
    store(c.z + c.size, z);
    store(c.weight + c.size, weight);
    store(c.id + c.size, iota() + broadcast((int32_t)first_id));
    c.size += 16;
    return;
  }
  float zs[16], weights[16];
  store(zs, z);
  store(weights, weight);
  for (; lanes; lanes &= lanes - 1) {
    int lane = __builtin_ctz(lanes);
    c.z[c.size] = zs[lane];
    c.weight[c.size] = weights[lane];
    c.id[c.size++] = (int32_t)(first_id + lane);
  }
}

SPECFAST_INLINE void append(Candidates& c, const Candidates& others, int64_t n) {
  if (c.z + c.size != others.z) {
    memmove(c.z + c.size, others.z, (size_t)n * sizeof(float));
    memmove(c.weight + c.size, others.weight, (size_t)n * sizeof(float));
    memmove(c.id + c.size, others.id, (size_t)n * sizeof(int32_t));
  }
  c.size += n;
}

// Tokens of [begin, end) that min-p keeps and whose z >= cut go to `out` (room for all of them).
SPECFAST_INLINE SliceMass gather_slice(const float* x, Slice s, RowScale scale, float cut,
                                       Candidates out) {
  MassSum sum;
  uint32_t left_out = 0;
  out.size = 0;
  for (int64_t i = s.begin; i < s.end; i += 16) {
    F32x16 z = tempered(load_or(x + i, s.end - i, -kInfinity), broadcast(scale.temperature));
    F32x16 w = weight(z, broadcast(scale.exponent));
    Mask16 kept = (broadcast(-kInfinity) < z) & (broadcast(scale.min_weight) <= w);
    sum.add(select(kept, w, broadcast(0.0f)));
    uint32_t near = bits(kept & (broadcast(cut) <= z));
    left_out |= near ^ bits(kept);
    if (near) append(out, z, w, i, near);
  }
  return {sum.total(), out.size, left_out == 0};
}

struct CountOne {
  uint64_t operator()(float) const { return 1; }
};
struct CountMass {
  uint64_t operator()(float weight) const { return mass(weight); }
};

SPECFAST_INLINE uint64_t mass_of_all(const Candidates& c) {
  uint64_t total = 0;
  for (int64_t begin = 0; begin < c.size; begin += kSlice) {
    MassSum sum;
    int64_t end = begin + kSlice < c.size ? begin + kSlice : c.size;
    for (int64_t i = begin; i < end; i += 16) sum.add(load_or(c.weight + i, end - i, 0.0f));
    total += sum.total();
  }
  return total;
}

constexpr int kDigitBits = 11;

// Adds up each digit's measure (key bits [shift, shift + width)) over the candidates whose key has
// `prefix` above them.
template <class Measure>
SPECFAST_INLINE void digit_histogram(const Candidates& c, int shift, int width, uint32_t prefix,
                                     uint64_t* histogram, Measure measure) {
  uint32_t above = shift + width == 32 ? 0 : ~0u << (shift + width);
  memset(histogram, 0, sizeof(uint64_t) << width);
  for (int64_t i = 0; i < c.size; i += 16) {
    F32x16 z = load_or(c.z + i, c.size - i, 0.0f);
    I32x16 key = sort_key(z) ^ broadcast(INT32_MIN);  // its unsigned order
    Mask16 agree = (key & broadcast((int32_t)above)) == broadcast((int32_t)prefix);
    uint32_t lanes = bits(agree & first_mask(c.size - i));
    if (!lanes) continue;
    int32_t keys[16];
    store(keys, key);
    for (; lanes; lanes &= lanes - 1) {
      int lane = __builtin_ctz(lanes);
      histogram[((uint32_t)keys[lane] >> shift) & ((1u << width) - 1)] +=
          measure(c.weight[i + lane]);
    }
  }
}

// The shortest prefix whose measures reach `target`, which all candidates together do.
template <class Measure>
SPECFAST_INLINE Support shortest_prefix(const Candidates& c, uint64_t target, Measure measure) {
  uint64_t histogram[1 << kDigitBits];
  uint32_t prefix = 0;
  for (int top = 32, shift; top > 0; top = shift) {
    shift = top > kDigitBits ? top - kDigitBits : 0;
    digit_histogram(c, shift, top - shift, prefix, histogram, measure);
    uint32_t digit = (1u << (top - shift)) - 1;
    while (digit > 0 && histogram[digit] < target) target -= histogram[digit--];
    prefix |= digit << shift;
  }
  Support support{sort_key_float((int32_t)(prefix ^ 0x80000000u)), -1};
  for (int64_t i = 0; i < c.size; i += 16) {
    F32x16 z = load_or(c.z + i, c.size - i, kInfinity);
    for (uint32_t ties = bits(z == broadcast(support.z)); ties; ties &= ties - 1) {
      int64_t at = i + __builtin_ctz(ties);
      support.last_id = c.id[at];
      uint64_t measured = measure(c.weight[at]);
      if (target <= measured) return support;
      target -= measured;
    }
  }
  return support;
}

SPECFAST_INLINE void drop_others(Candidates& c, Support support) {
  int64_t n = 0;
  for (int64_t i = 0; i < c.size; i += 16) {
    F32x16 z = load_or(c.z + i, c.size - i, -kInfinity);
    for (uint32_t near = bits(broadcast(support.z) <= z); near; near &= near - 1) {
      int64_t at = i + __builtin_ctz(near);
      if (!support.holds(c.z[at], c.id[at])) continue;
      c.z[n] = c.z[at], c.weight[n] = c.weight[at], c.id[n++] = c.id[at];
    }
  }
  c.size = n;
}

SPECFAST_INLINE Support support_of_all(const Candidates& c) {
  F32x16 least = broadcast(kInfinity);
  for (int64_t i = 0; i < c.size; i += 16)
    least = min(load_or(c.z + i, c.size - i, kInfinity), least);
  return {0.0f - reduce_max(broadcast(0.0f) - least), INT32_MAX};
}

// Whether candidates that a cut left incomplete hold the whole support all the same; `total` is the
// mass of all that min-p keeps.
SPECFAST_INLINE bool enough(const Candidates& c, const RowFilter& f, uint64_t total) {
  if (f.top_k) return c.size >= f.top_k;
  return f.top_p < 1.0f && mass_of_all(c) >= mass_share(f.top_p, total);
}

// Top-k, then top-p of what is left.
SPECFAST_INLINE Support filtered_support(Candidates c, const RowFilter& f, uint64_t total) {
  bool cuts_k = f.top_k && f.top_k < c.size;
  Support support = cuts_k ? shortest_prefix(c, (uint64_t)f.top_k, CountOne{}) : support_of_all(c);
  if (f.top_p == 1.0f) return support;
  if (cuts_k) drop_others(c, support);
  if (f.top_k) total = mass_of_all(c);
  return shortest_prefix(c, mass_share(f.top_p, total), CountMass{});
}

// The candidates of the rows that are filtered together.
struct CandidateStore {
  VocabSlices slices;
  SliceMass* masses;  // [rows, slices]
  float* z;           // [rows, slices kSlice], each slice's from its own start
  float* weight;      // as z
  int32_t* id;        // as z

  void carve(Carver& c, int64_t rows) {
    masses = c.take<SliceMass>(rows * slices.count);
    z = c.take<float>(rows * slices.count * kSlice);
    weight = c.take<float>(rows * slices.count * kSlice);
    id = c.take<int32_t>(rows * slices.count * kSlice);
  }
  Candidates from(int64_t row, int64_t slice) const {
    int64_t at = (row * slices.count + slice) * kSlice;
    return {z + at, weight + at, id + at, 0};
  }
  void gather(int64_t row, const float* x, Slice s, RowScale scale, float cut) const {
    masses[slices.at(row, s)] = gather_slice(x, s, scale, cut, from(row, s.index));
  }
  // All slices' candidates, moved together, with the sums of their SliceMass.
  Candidates pack(int64_t row, SliceMass& sum) const {
    Candidates all = from(row, 0);
    sum = {0, 0, true};
    for (int64_t i = 0; i < slices.count; i++) {
      const SliceMass& m = masses[row * slices.count + i];
      append(all, from(row, i), m.size);
      sum = {sum.mass + m.mass, all.size, sum.all && m.all};
    }
    return all;
  }
  // From the gathered candidates, or from all tokens if the cut left out too many.
  Support support(int64_t row, const float* x, RowScale scale, const RowFilter& f) const {
    SliceMass sum;
    Candidates c = pack(row, sum);
    if (!sum.all && !enough(c, f, sum.mass)) {
      for (int64_t i = 0; i < slices.count; i++) gather(row, x, slices[i], scale, -kInfinity);
      c = pack(row, sum);
    }
    return filtered_support(c, f, sum.mass);
  }
};

}  // namespace specfast::cpu::SPECFAST_TIER
