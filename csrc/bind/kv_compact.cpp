#include "paged.h"

namespace specfast::bind {
namespace {

void check_path(const KvCompactParams& p, int64_t b) {
  int64_t accepted = p.num_accepted[b];
  STD_TORCH_CHECK(accepted >= 0 && accepted <= p.N, "num_accepted: must be 0 to ", p.N,
                  " (the nodes of path), got ", accepted, " for sequence ", b);
  if (accepted == 0) return;
  const int32_t* path = p.path + b * p.N;
  for (int64_t j = 0; j < accepted; j++)
    STD_TORCH_CHECK(path[j] >= j && (j == 0 || path[j] > path[j - 1]),
                    "path: must increase, with path[b, j] >= j; sequence ", b, " has ", path[j],
                    " at ", j);
  int64_t base = p.node_base[b];
  check_blocks(p.block_tables, p.max_blocks, p.num_blocks, p.block_size, b, base,
               base + path[accepted - 1] + 1);
}

void check_paths(const KvCompactParams& p) {
  for (int64_t b = 0; b < p.B; b++) check_path(p, b);
}

}  // namespace

void kv_compact(Tensor cache, const Tensor& block_tables, const Tensor& node_base,
                const Tensor& path, const Tensor& num_accepted) {
  Door door;
  KvCompactParams p{};
  door.check_device(cache, "cache");
  check_shape(cache, "cache", {-1, 2, -1, -1, -1, -1});
  check_contiguous(cache, "cache");
  storage_dtype(cache, "cache");
  p.cache = output<void>(cache);
  p.layers = cache.size(0), p.num_blocks = cache.size(2), p.block_size = cache.size(3);
  STD_TORCH_CHECK(p.block_size > 0, "cache: block_size must not be 0, got ", shape_text(cache));
  p.token_bytes = cache.size(4) * cache.size(5) * (int64_t)cache.element_size();
  p.block_tables = door.i32_in(block_tables, "block_tables", {-1, -1});
  p.B = block_tables.size(0), p.max_blocks = block_tables.size(1);
  p.node_base = door.i32_in(node_base, "node_base", {p.B});
  p.path = door.i32_in(path, "path", {p.B, -1});
  p.N = path.size(1);
  p.num_accepted = door.i32_in(num_accepted, "num_accepted", {p.B});
  if (!door.on_cuda()) check_paths(p);
  door.run(p, SPECFAST_LAUNCHERS(kv_compact));
}

SPECFAST_REGISTER(kv_compact)

}  // namespace specfast::bind
