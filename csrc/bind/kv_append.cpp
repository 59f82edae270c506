#include "paged.h"

namespace specfast::bind {

void kv_append(const Tensor& k, const Tensor& v, const Tensor& slots, Tensor kv_cache,
               Tensor status) {
  Door door;
  KvAppendParams p{};
  p.cache = paged_layer(door, kv_cache);
  p.dtype = door.activations(k, "k");
  p.k = door.float_rows(k, "k", {-1, p.cache.num_kv_heads, p.cache.head_dim}, p.dtype);
  p.M = k.size(0), p.k_stride = row_stride(k);
  p.v = door.float_rows(v, "v", {p.M, p.cache.num_kv_heads, p.cache.head_dim}, p.dtype);
  p.v_stride = row_stride(v);
  p.slots = row_slots(door, slots, p.M, p.cache);
  p.status = door.i32_out(status, "status", {p.M});
  door.run(p, SPECFAST_LAUNCHERS(kv_append));
}

SPECFAST_REGISTER(kv_append)

}  // namespace specfast::bind
