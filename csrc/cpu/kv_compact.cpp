#include <cstring>

#include "core/paged_kv.h"
#include "kernels.h"

namespace specfast::cpu {
namespace {

constexpr int64_t kGrainPaths = 8;

// One sequence's path in one layer's K or V. path[j] >= j and increases, so a token is read before
// its slot is written.
void compact_path(const KvCompactParams& p, int64_t b, char* plane) {
  const int32_t* table = p.block_tables + b * p.max_blocks;
  auto token = [&](int64_t node) {
    return plane + slot_of(table, p.block_size, p.node_base[b] + node) * p.token_bytes;
  };
  for (int64_t j = 0; j < p.num_accepted[b]; j++) {
    int64_t node = p.path[b * p.N + j];
    if (node != j) memcpy(token(j), token(node), (size_t)p.token_bytes);
  }
}

}  // namespace

void kv_compact(const KvCompactParams& p, ParallelFor parallel_for) {
  int64_t plane_bytes = p.num_blocks * p.block_size * p.token_bytes;
  parallel_for(p.layers * 2 * p.B, kGrainPaths, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++)
      compact_path(p, i % p.B, static_cast<char*>(p.cache) + i / p.B * plane_bytes);
  });
}

}  // namespace specfast::cpu
