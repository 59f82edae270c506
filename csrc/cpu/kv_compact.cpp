#include <cstdlib>

#include "kernels.h"

namespace specfast::cpu {

void kv_compact(const KvCompactParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu
