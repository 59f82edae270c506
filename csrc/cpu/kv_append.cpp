#include <cstdlib>

#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void kv_append(const KvAppendParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu::SPECFAST_TIER
