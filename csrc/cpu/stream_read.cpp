#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void stream_read(const StreamReadParams& p, ParallelFor parallel_for) {
  constexpr int64_t kChunk = 1024, kAhead = 1024;  // both a page of 4 KB
  parallel_for(p.chunks, 64, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; chunk++) {
      const int32_t* data = p.data + chunk * kChunk;
      I32x16 sum[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)};
      for (int64_t i = 0; i < kChunk; i += 64)
        for (int j = 0; j < 4; j++) {
          __builtin_prefetch(data + i + 16 * j + kAhead);
          sum[j] = sum[j] + load(data + i + 16 * j);
        }
      alignas(64) int32_t lanes[16];
      store(lanes, (sum[0] + sum[1]) + (sum[2] + sum[3]));
      p.sums[chunk] = lanes[0];
    }
  });
}

}  // namespace specfast::cpu::SPECFAST_TIER
