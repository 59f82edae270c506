#include "cpu/kv_store.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

constexpr int64_t kGrainRows = 16;

template <class Element>
void run(const KvAppendParams& p, ParallelFor parallel_for) {
  parallel_for(p.M, kGrainRows, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t row = first; row < last; row++) {
      if (p.slots[row] < 0) continue;
      p.status[row] |= store_row<Element>(p.cache, 0, p.slots[row], p.k + row * p.k_stride);
      p.status[row] |= store_row<Element>(p.cache, 1, p.slots[row], p.v + row * p.v_stride);
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
