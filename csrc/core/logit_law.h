// What a row of logits means at a temperature: the scores that noise is added to, and the integer
// masses that filters compare. Integers, so that no sum depends on its order.
#pragma once
#include "core/fast_math.h"

namespace specfast {

constexpr float kGreedyBelow = 1e-5f;
constexpr float kLargestScore = 1e30f;
constexpr float kInfinity = __builtin_inff();

SPECFAST_HD bool is_greedy(float temperature) { return !(temperature >= kGreedyBelow); }

// z = x / T, clamped; -inf stays.
template <class T>
SPECFAST_HD T tempered(T x, T temperature) {
  T none = splat(x, -kInfinity);
  T z = max(x / temperature, splat(x, -kLargestScore));
  return select(x == none, none, min(z, splat(x, kLargestScore)));
}

// m: the largest N = ceil(z log2 e) of a row, from its largest z.
SPECFAST_HD float row_exponent(float z_max) { return ceil(z_max * kLog2e); }

// poly(F) 2^(N - m) in [0, 1]: monotone in z; 0 for z = -inf.
template <class T>
SPECFAST_HD T weight(T z, T m) {
  T y = max(z * splat(z, kLog2e), splat(z, -0x1p127f));
  T n = ceil(y);
  return exp2_poly(y - n) * pow2i(n - m);
}

// floor(weight 2^40).
SPECFAST_HD uint64_t mass(float weight) { return (uint64_t)(int64_t)(weight * 0x1p40f); }

// The least weight whose mass is at least `least`.
SPECFAST_HD float weight_of_mass(uint64_t least) {
  float w = (float)(int64_t)least;
  if ((uint64_t)(int64_t)w < least) w = bitcast_f32(bitcast_i32(w) + 1);
  return w * 0x1p-40f;
}

// ceil(share * total) in doubles, within [1, total].
SPECFAST_HD uint64_t mass_share(float share, uint64_t total) {
  double need = __builtin_ceil((double)share * (double)(int64_t)total);
  if (!(need >= 1.0)) return 1;
  uint64_t n = need < 0x1p62 ? (uint64_t)(int64_t)need : total;
  return n < total ? n : total;
}

struct RowFilter {
  int64_t top_k;  // 0: off
  float top_p;    // 1: off
  float min_p;    // 0: off

  SPECFAST_HD bool any() const { return top_k || top_p < 1.0f || min_p > 0.0f; }
};

// As a caller asks for it; compared so that a NaN turns its filter off.
SPECFAST_HD RowFilter row_filter(int64_t top_k, float top_p, float min_p, int64_t vocab) {
  return {top_k > 0 && top_k < vocab ? top_k : 0, top_p < 1.0f ? top_p : 1.0f,
          min_p > 0.0f ? min_p : 0.0f};
}

struct RowScale {
  float temperature;
  float z_max, exponent;  // of the whole row
  float min_weight;       // of what min-p keeps
};

SPECFAST_HD RowScale row_scale(float x_max, float temperature, const RowFilter& f) {
  float z_max = tempered(x_max, temperature);
  float exponent = row_exponent(z_max), min_weight = 0.0f;
  if (f.min_p > 0.0f)
    min_weight = weight_of_mass(mass_share(f.min_p, mass(weight(z_max, exponent))));
  return {temperature, z_max, exponent, min_weight};
}

// Under the logits as given (temperature 1, no filter), whose masses have this exponent and total:
// ln of 2^(y - m) 2^40 / total, with y = z log2 e; the normaliser is ln 2 (m + log2 total - 40).
SPECFAST_HD float logprob(float x, float exponent, uint64_t total) {
  float z = tempered(x, 1.0f);
  float sum = (float)(int64_t)total;
  float e = to_f32(log_exponent(sum));
  float mantissa = sum * pow2i(0.0f - e);
  float octaves = max(z * kLog2e, -0x1p127f) - exponent + (40.0f - e);
  return min(fma(octaves, kLn2, -log(mantissa)), 0.0f);
}

}  // namespace specfast
