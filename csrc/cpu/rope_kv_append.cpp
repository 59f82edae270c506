#include <cstdlib>

#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void rope_kv_append(const RopeKvAppendParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu::SPECFAST_TIER
