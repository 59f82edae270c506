#include <cstdlib>

#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void rank_candidates(const RankCandidatesParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu::SPECFAST_TIER
