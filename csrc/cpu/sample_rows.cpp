#include <cstdlib>

#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void sample_rows(const SampleRowsParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu::SPECFAST_TIER
