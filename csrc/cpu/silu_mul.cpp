#include <cstdlib>

#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void silu_mul(const SiluMulParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu::SPECFAST_TIER
