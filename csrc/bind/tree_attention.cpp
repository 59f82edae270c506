#include "core/tree.h"
#include "paged.h"

namespace specfast::bind {
namespace {

// A row past node_base is a node, and its path has as many nodes as it has positions there.
// Returns the end of the positions whose slots it may use.
int64_t check_row(const TreeAttentionParams& p, int64_t b, int64_t row) {
  int64_t position = p.positions[row], depth = position - p.node_base[b];
  STD_TORCH_CHECK(position >= -1, "positions: row ", row, " has position ", position,
                  "; -1 is padding");
  if (position < 0 || depth < 0) return position + 1;
  uint64_t bits = (uint64_t)p.node_bits[row];
  STD_TORCH_CHECK(path_length(bits) == depth + 1, "node_bits: row ", row, " at depth ", depth,
                  " must have ", depth + 1, " ancestor-or-self bits, got ", path_length(bits));
  return (int64_t)p.node_base[b] + last_node(bits) + 1;
}

void check_sequence(const TreeAttentionParams& p, int64_t b) {
  STD_TORCH_CHECK(p.node_base[b] >= 0 && p.kv_start[b] >= 0,
                  "node_base, kv_start: must not be negative (sequence ", b, ")");
  int64_t begin = INT64_MAX, end = 0;
  for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; row++) {
    int64_t row_end = check_row(p, b, row);
    Span span = visible(p.kv_start[b], p.positions[row], p.window);
    if (span.empty()) continue;
    if (span.begin < begin) begin = span.begin;
    if (row_end > end) end = row_end;
  }
  if (end > 0)
    check_blocks(p.block_tables, p.max_blocks, p.cache.num_blocks, p.cache.block_size, b, begin,
                 end);
}

void check_rows(const TreeAttentionParams& p) {
  int64_t row = 0;
  for (int64_t b = 0; b < p.B; b++) {
    STD_TORCH_CHECK(p.qo_indptr[b] >= row && p.qo_indptr[b + 1] <= p.M,
                    "qo_indptr: must not decrease, within 0 and the ", p.M, " rows of q");
    row = p.qo_indptr[b];
  }
  STD_TORCH_CHECK(p.qo_indptr[p.B] >= row, "qo_indptr: must not decrease");
  for (int64_t b = 0; b < p.B; b++) check_sequence(p, b);
}

}  // namespace

void tree_attention(const Tensor& q, const Tensor& kv_cache, const Tensor& block_tables,
                    const Tensor& qo_indptr, const Tensor& node_base, const Tensor& kv_start,
                    const Tensor& positions, const Tensor& node_bits, double scale, int64_t window,
                    double soft_cap, Tensor out, const std::optional<Tensor>& workspace) {
  Door door;
  TreeAttentionParams p{};
  p.cache = paged_layer(door, kv_cache);
  p.dtype = door.activations(q, "q");
  p.q = door.float_rows(q, "q", {-1, -1, p.cache.head_dim}, p.dtype);
  p.M = q.size(0), p.H = q.size(1), p.q_stride = row_stride(q);
  STD_TORCH_CHECK(p.H > 0 && p.H % p.cache.num_kv_heads == 0, "q: must have a multiple of ",
                  p.cache.num_kv_heads, " heads (the cache's), got ", p.H);
  p.out = door.float_out(out, "out", {p.M, p.H, p.cache.head_dim}, p.dtype);
  p.block_tables = door.i32_in(block_tables, "block_tables", {-1, -1});
  p.B = block_tables.size(0), p.max_blocks = block_tables.size(1);
  p.qo_indptr = door.i32_in(qo_indptr, "qo_indptr", {p.B + 1});
  p.node_base = door.i32_in(node_base, "node_base", {p.B});
  p.kv_start = door.i32_in(kv_start, "kv_start", {p.B});
  p.positions = door.i32_in(positions, "positions", {p.M});
  p.node_bits = door.i64_in(node_bits, "node_bits", {p.M});
  STD_TORCH_CHECK(window >= 0 && soft_cap >= 0, "window, soft_cap: must be 0 (off) or more, got ",
                  window, " and ", soft_cap);
  p.window = window, p.scale = (float)scale, p.soft_cap = (float)soft_cap;
  if (!door.on_cuda()) check_rows(p);
  p.workspace = static_cast<float*>(door.workspace(workspace, 0));
  p.workspace_floats = workspace ? workspace->numel() / 4 : 0;
  door.run(p, SPECFAST_LAUNCHERS(tree_attention));
}

SPECFAST_REGISTER(tree_attention)

}  // namespace specfast::bind
