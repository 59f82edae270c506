#include "kernels.h"
#include "paged.h"

namespace specfast::bind {
namespace {

void check_positions(const RopeKvAppendParams& p) {
  for (int64_t row = 0; row < p.M; row++) {
    int32_t position = p.positions[row];
    STD_TORCH_CHECK(position >= -1 && (p.rotary_dim == 0 || position < p.num_positions),
                    "positions: row ", row, " has position ", position, ", cos_sin holds ",
                    p.num_positions, "; -1 is padding");
    STD_TORCH_CHECK(position >= 0 || p.slots[row] < 0, "slots: row ", row,
                    " is padding (position -1) but has slot ", p.slots[row]);
  }
}

}  // namespace

void rope_kv_append(const Tensor& qkv, const Tensor& cos_sin, const Tensor& positions,
                    const Tensor& slots, const std::optional<Tensor>& q_norm,
                    const std::optional<Tensor>& k_norm, double eps, Tensor q_out, Tensor kv_cache,
                    Tensor status) {
  RopeKvAppendParams p{};
  p.cache = paged_layer(kv_cache);
  int64_t head_dim = p.cache.head_dim;
  p.q_out = f32_out(q_out, "q_out", {-1, -1, head_dim});
  p.M = q_out.size(0), p.H = q_out.size(1);
  p.qkv = f32_rows(qkv, "qkv", {p.M, (p.H + 2 * p.cache.num_kv_heads) * head_dim});
  p.qkv_stride = row_stride(qkv);
  p.cos_sin = f32_in(cos_sin, "cos_sin", {-1, -1});
  p.num_positions = cos_sin.size(0), p.rotary_dim = cos_sin.size(1);
  STD_TORCH_CHECK(p.rotary_dim % 2 == 0 && p.rotary_dim <= head_dim,
                  "cos_sin: must have an even number of columns, at most head_dim ", head_dim,
                  ", got ", p.rotary_dim);
  p.positions = i32_in(positions, "positions", {p.M});
  p.slots = row_slots(slots, p.M, p.cache);
  check_positions(p);
  p.q_norm = f32_in(q_norm, "q_norm", {head_dim});
  p.k_norm = f32_in(k_norm, "k_norm", {head_dim});
  p.status = i32_out(status, "status", {p.M});
  p.eps = (float)eps;
  cpu::rope_kv_append(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  m.impl("rope_kv_append", TORCH_BOX(&rope_kv_append));
}

}  // namespace specfast::bind
