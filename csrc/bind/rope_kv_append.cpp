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
  Door door;
  RopeKvAppendParams p{};
  p.cache = paged_layer(door, kv_cache);
  int64_t head_dim = p.cache.head_dim;
  p.dtype = door.activations(qkv, "qkv");
  p.q_out = door.float_out(q_out, "q_out", {-1, -1, head_dim}, p.dtype);
  p.M = q_out.size(0), p.H = q_out.size(1);
  p.qkv = door.float_rows(qkv, "qkv", {p.M, (p.H + 2 * p.cache.num_kv_heads) * head_dim}, p.dtype);
  p.qkv_stride = row_stride(qkv);
  p.cos_sin = door.float_in(cos_sin, "cos_sin", {-1, -1});
  p.num_positions = cos_sin.size(0), p.rotary_dim = cos_sin.size(1);
  STD_TORCH_CHECK(p.rotary_dim % 2 == 0 && p.rotary_dim <= head_dim,
                  "cos_sin: must have an even number of columns, at most head_dim ", head_dim,
                  ", got ", p.rotary_dim);
  p.positions = door.i32_in(positions, "positions", {p.M});
  p.slots = row_slots(door, slots, p.M, p.cache);
  if (!door.on_cuda()) check_positions(p);
  p.q_norm = door.float_in(q_norm, "q_norm", {head_dim});
  p.k_norm = door.float_in(k_norm, "k_norm", {head_dim});
  p.status = door.i32_out(status, "status", {p.M});
  p.eps = (float)eps;
  door.run(p, SPECFAST_LAUNCHERS(rope_kv_append));
}

SPECFAST_REGISTER(rope_kv_append)

}  // namespace specfast::bind
