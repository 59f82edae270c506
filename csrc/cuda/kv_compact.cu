#include "core/paged_kv.h"
#include "cuda/launch.cuh"

namespace specfast::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBatch = 4;  // loads in flight a thread

// The slot of a logical position, or -1 where the sequence has none. Nobody has looked at these
// values: what lies outside the cache moves nowhere.
__device__ int64_t find_slot(const KvCompactParams& p, int64_t b, int64_t position) {
  if (position < 0 || position >= p.max_blocks * p.block_size) return -1;
  int64_t slot = slot_of(p.block_tables + b * p.max_blocks, p.block_size, position);
  return slot < p.num_blocks * p.block_size ? slot : -1;
}

// A thread owns one column of a plane's tokens, so nobody else reads or writes what it moves; and
// as path[j] >= j increases, every source is loaded before a store of this or a later batch can hit
// it.
template <class Column>
__global__ void __launch_bounds__(kThreads) kv_compact_kernel(KvCompactParams p) {
  int64_t columns = p.token_bytes / (int64_t)sizeof(Column);
  int64_t b = blockIdx.x, column = (int64_t)blockIdx.y * kThreads + threadIdx.x;
  if (column >= columns) return;
  int64_t plane = blockIdx.z * p.num_blocks * p.block_size;
  Column* tokens = static_cast<Column*>(p.cache) + plane * columns + column;
  const int32_t* path = p.path + b * p.N;
  int64_t base = p.node_base[b], count = p.num_accepted[b] < p.N ? p.num_accepted[b] : p.N;
  for (int64_t first = 0; first < count; first += kBatch) {
    Column moved[kBatch];
    int64_t to[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      int64_t j = first + i, node = j < count ? path[j] : -1;
      int64_t from = node > j ? find_slot(p, b, base + node) : -1;
      to[i] = from < 0 ? -1 : find_slot(p, b, base + j);
      if (to[i] >= 0) moved[i] = tokens[from * columns];
    }
#pragma unroll
    for (int i = 0; i < kBatch; i++)
      if (to[i] >= 0) tokens[to[i] * columns] = moved[i];
  }
}

template <class Column>
void launch_kv_compact(const KvCompactParams& p, Stream stream) {
  int64_t columns = p.token_bytes / (int64_t)sizeof(Column);
  dim3 grid((unsigned)p.B, (unsigned)ceil_div(columns, kThreads), (unsigned)(2 * p.layers));
  SPECFAST_LAUNCH(kv_compact_kernel<Column>, grid, kThreads, 0, stream, p);
}

}  // namespace

void kv_compact(const KvCompactParams& p, Stream stream) {
  bool aligned = p.token_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(p.cache) % 16 == 0;
  aligned ? launch_kv_compact<uint4>(p, stream) : launch_kv_compact<unsigned char>(p, stream);
}

}  // namespace specfast::cuda
