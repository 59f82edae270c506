#include "cpu/kv_store.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

constexpr int64_t kGrainRows = 16;

template <class Element>
void run(const KvAppendParams& p, ParallelFor parallel_for) {
  int64_t token_size = p.cache.num_kv_heads * p.cache.head_dim;
  parallel_for(p.M, kGrainRows, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t row = first; row < last; row++) {
      if (p.slots[row] < 0) continue;
      Element* k = slot_data<Element>(p.cache, 0, p.slots[row]);
      Element* v = slot_data<Element>(p.cache, 1, p.slots[row]);
      p.status[row] |= store_finite(k, p.k + row * p.k_stride, token_size);
      p.status[row] |= store_finite(v, p.v + row * p.v_stride, token_size);
    }
  });
}

}  // namespace

void kv_append(const KvAppendParams& p, ParallelFor parallel_for) {
  if (p.cache.dtype == DType::bf16)
    run<uint16_t>(p, parallel_for);
  else
    run<float>(p, parallel_for);
}

}  // namespace specfast::cpu::SPECFAST_TIER
