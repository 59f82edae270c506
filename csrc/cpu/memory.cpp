// Memory that weights live in, and what reading it costs.
#include <atomic>

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

uint64_t stream_read(const void* data, int64_t bytes, ParallelFor parallel_for) {
  constexpr int64_t kChunk = 4096, kWords = kChunk / 8;
  std::atomic<uint64_t> total{0};
  parallel_for(bytes / kChunk, 64, [&](int64_t first, int64_t last) {
    const uint64_t* words = static_cast<const uint64_t*>(data) + first * kWords;
    uint64_t sum[8] = {};
    for (int64_t i = 0; i < (last - first) * kWords; i += 8) {
      __builtin_prefetch(words + i + kWords);
      for (int j = 0; j < 8; j++) sum[j] += words[i + j];
    }
    for (uint64_t s : sum) total.fetch_add(s, std::memory_order_relaxed);
  });
  return total.load();
}

}  // namespace specfast::cpu
