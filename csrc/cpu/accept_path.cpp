#include <cstdlib>

#include "kernels.h"

namespace specfast::cpu {

void accept_path(const AcceptPathParams&, ParallelFor) { abort(); }

}  // namespace specfast::cpu
