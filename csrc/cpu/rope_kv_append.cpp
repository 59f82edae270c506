#include "cpu/kv_store.h"
#include "cpu/rms.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

constexpr int64_t kGrainRows = 16;

// out = x / rms(x) * weight, as the op rms_norm rounds it; a plain copy without a weight.
SPECFAST_INLINE void norm_head(const float* x, const float* weight, float eps, int64_t head_dim,
                               float* out) {
  F32x16 squares = broadcast(0.0f);
  for (int64_t d = 0; d < head_dim; d += 16) {
    F32x16 h = load(x + d);
    squares = fma(h, h, squares);
    store(out + d, h);
  }
  if (!weight) return;
  F32x16 inverse = inverse_rms(squares, head_dim, eps);
  for (int64_t d = 0; d < head_dim; d += 16)
    store(out + d, load(out + d) * inverse * load(weight + d));
}

// Pairs (d, d + half) turn by the angle of dimension d; cosines lie at angles, sines after them.
SPECFAST_INLINE void rotate_head(float* x, const float* angles, int64_t half) {
  for (int64_t d = 0; d < half; d += 16) {
    int n = half - d < 16 ? (int)(half - d) : 16;
    F32x16 a = load_first(x + d, n), b = load_first(x + half + d, n);
    F32x16 c = load_first(angles + d, n), s = load_first(angles + half + d, n);
    store_first(x + d, a * c - b * s, n);
    store_first(x + half + d, b * c + a * s, n);
  }
}

template <class Element>
SPECFAST_INLINE void append_row(const RopeKvAppendParams& p, int64_t row) {
  int64_t head_dim = p.cache.head_dim, kv_heads = p.cache.num_kv_heads, slot = p.slots[row];
  const float* angles = p.cos_sin + p.positions[row] * p.rotary_dim;
  const float* x = p.qkv + row * p.qkv_stride;
  float* q = p.q_out + row * p.H * head_dim;
  for (int64_t h = 0; h < p.H; h++, x += head_dim, q += head_dim) {
    norm_head(x, p.q_norm, p.eps, head_dim, q);
    rotate_head(q, angles, p.rotary_dim / 2);
  }
  if (slot < 0) return;
  Element* k_out = slot_data<Element>(p.cache, 0, slot);
  alignas(64) float k[kMaxHeadDim];
  for (int64_t h = 0; h < kv_heads; h++, x += head_dim) {
    norm_head(x, p.k_norm, p.eps, head_dim, k);
    rotate_head(k, angles, p.rotary_dim / 2);
    p.status[row] |= store_finite(k_out + h * head_dim, k, head_dim);
  }
  p.status[row] |= store_finite(slot_data<Element>(p.cache, 1, slot), x, kv_heads * head_dim);
}

template <class Element>
void run(const RopeKvAppendParams& p, ParallelFor parallel_for) {
  parallel_for(p.M, kGrainRows, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t row = first; row < last; row++) {
      if (p.positions[row] >= 0)
        append_row<Element>(p, row);
      else
        memset(p.q_out + row * p.H * p.cache.head_dim, 0, p.H * p.cache.head_dim * sizeof(float));
    }
  });
}

}  // namespace

void rope_kv_append(const RopeKvAppendParams& p, ParallelFor parallel_for) {
  if (p.cache.dtype == DType::bf16)
    run<uint16_t>(p, parallel_for);
  else
    run<float>(p, parallel_for);
}

}  // namespace specfast::cpu::SPECFAST_TIER
