// Memory that weights live in.
#include "kernels.h"
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace specfast::cpu {

bool advise_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHuge = uintptr_t{1} << 21;
  uintptr_t begin = ((uintptr_t)data + kHuge - 1) & ~(kHuge - 1);
  uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) & ~(kHuge - 1);
  return begin < end && madvise((void*)begin, end - begin, MADV_HUGEPAGE) == 0;
#else
  (void)data, (void)bytes;
  return false;
#endif
}

}  // namespace specfast::cpu
