// The softmax of one row over one split, or over the splits folded so far, as floats: o [D], then l
// [16], then m. exp2 is split into integer and fraction before a maximum is subtracted, so m is an
// integer and every rescale an exact power of two: DESIGN section 7.
#pragma once
#include <cmath>

#include "core/fast_math.h"
#include "cpu/attention_tile.h"

namespace specfast::cpu::SPECFAST_TIER {

// Floats from one state to the next.
SPECFAST_INLINE int64_t state_stride(int64_t head_dim) { return head_dim + 32; }

inline void reset_state(float* state, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim + 16; d += 16) store(state + d, broadcast(0.0f));
  state[head_dim + 16] = -INFINITY;
}

inline void raise_max(float* state, int64_t head_dim, float m) {
  if (m == state[head_dim + 16]) return;
  F32x16 scale = broadcast(pow2i(state[head_dim + 16] - m));
  for (int64_t d = 0; d < head_dim + 16; d += 16) store(state + d, load(state + d) * scale);
  state[head_dim + 16] = m;
}

// Columns [lo, hi) of 16 c..16 c + 15 as a mask.
SPECFAST_INLINE Mask16 columns(int lo, int hi, int c) {
  uint64_t below_hi = hi < kTile ? (1ull << hi) - 1 : ~0ull;
  return mask_from_bits((uint32_t)((below_hi & ~0ull << lo) >> 16 * c) & 0xffff);
}

// Turns the row's scores into weights under its new maximum and adds them to l.
inline void weigh(float* scores, const Row& row, int64_t head_dim, float scale, float soft_cap) {
  constexpr int kVectors = kTile / 16;
  F32x16 fraction[kVectors], exponent[kVectors];
  F32x16 top = broadcast(row.state[head_dim + 16]);
  for (int i = 0; i < kVectors; i++) {
    F32x16 s = load(scores + 16 * i) * broadcast(scale);
    if (soft_cap > 0) s = broadcast(soft_cap) * tanh(s / broadcast(soft_cap));
    F32x16 t = s * broadcast(kLog2e), n = ceil(t);
    fraction[i] = t - n;
    exponent[i] = select(columns(row.lo, row.hi, i), n, broadcast(-INFINITY));
    top = max(exponent[i], top);  // a NaN doesn't count here: its weight is NaN
  }
  float m = reduce_max(top);
  raise_max(row.state, head_dim, m);
  F32x16 l = load(row.state + head_dim);
  for (int i = 0; i < kVectors; i++) {
    F32x16 w = exp2_poly(fraction[i]) * pow2i(exponent[i] - broadcast(m));
    w = select(columns(row.lo, row.hi, i), w, broadcast(0.0f));
    l = l + w;
    store(scores + 16 * i, w);
  }
  store(row.state + head_dim, l);
}

// total = total followed by split.
inline void fold(float* total, const float* split, int64_t head_dim) {
  float* total_m = total + head_dim + 16;
  float split_m = split[head_dim + 16];
  float m = *total_m > split_m ? *total_m : split_m;
  F32x16 a = broadcast(pow2i(*total_m - m)), b = broadcast(pow2i(split_m - m));
  for (int64_t d = 0; d < head_dim + 16; d += 16)
    store(total + d, load(total + d) * a + load(split + d) * b);
  *total_m = m;
}

inline void write_output(const float* total, int64_t head_dim, float* out) {
  F32x16 l = broadcast(reduce_add(load(total + head_dim)));
  for (int64_t d = 0; d < head_dim; d += 16) store(out + d, load(total + d) / l);
}

}  // namespace specfast::cpu::SPECFAST_TIER
