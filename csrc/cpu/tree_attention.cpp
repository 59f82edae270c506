#include <cstdlib>

#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void tree_attention(const TreeAttentionParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu::SPECFAST_TIER
