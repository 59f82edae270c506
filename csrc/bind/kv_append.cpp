#include "kernels.h"
#include "paged.h"

namespace specfast::bind {

void kv_append(const Tensor& k, const Tensor& v, const Tensor& slots, Tensor kv_cache,
               Tensor status) {
  KvAppendParams p{};
  p.cache = paged_layer(kv_cache);
  p.k = f32_rows(k, "k", {-1, p.cache.num_kv_heads, p.cache.head_dim});
  p.M = k.size(0), p.k_stride = row_stride(k);
  p.v = f32_rows(v, "v", {p.M, p.cache.num_kv_heads, p.cache.head_dim});
  p.v_stride = row_stride(v);
  p.slots = row_slots(slots, p.M, p.cache);
  p.status = i32_out(status, "status", {p.M});
  cpu::kv_append(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) { m.impl("kv_append", TORCH_BOX(&kv_append)); }

}  // namespace specfast::bind
