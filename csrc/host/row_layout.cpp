#include "host/row_layout.h"

#include "core/paged_kv.h"

namespace specfast {

RowLayout::RowLayout(const BatchView& batch) : qo_indptr{0} {
  const int32_t* tail = batch.tail_tokens;
  for (int64_t b = 0; b < batch.B; b++) {
    for (int64_t i = 0; i < batch.num_tokens[b]; i++) {
      int64_t position = batch.starts[b] + i;
      add_row(batch, b, *tail++, position, position, 0);
    }
    int64_t root = (int64_t)token_ids.size() - 1;
    add_nodes(batch, b);
    qo_indptr.push_back((int32_t)token_ids.size());
    row_base.push_back(batch.decides[b] ? (int32_t)logit_rows.size() : -1);
    if (!batch.decides[b]) continue;
    for (int64_t row = root; row < (int64_t)token_ids.size(); row++) {
      logit_rows.push_back(row);
      row_seq.push_back(b);
      decided_positions.push_back(positions[row] + 1);
    }
  }
}

void RowLayout::add_row(const BatchView& batch, int64_t b, int32_t token, int64_t position,
                        int64_t slot, uint64_t bits) {
  token_ids.push_back(token);
  positions.push_back((int32_t)position);
  slots.push_back(slot_of(batch.block_tables + b * batch.max_blocks, batch.block_size, slot));
  node_bits.push_back((int64_t)bits);
}

// A node sees its parent's path and itself; its position is one past its parent's.
void RowLayout::add_nodes(const BatchView& batch, int64_t b) {
  const int32_t* parents = batch.parents + b * batch.N;
  int64_t first = (int64_t)token_ids.size();
  int64_t base = (int64_t)batch.starts[b] + batch.num_tokens[b];
  for (int64_t node = 0; node < batch.lengths[b]; node++) {
    int64_t parent = parents[node];
    uint64_t above = parent < 0 ? 0 : (uint64_t)node_bits[first + parent];
    int64_t position = parent < 0 ? base : (int64_t)positions[first + parent] + 1;
    add_row(batch, b, batch.tokens[b * batch.N + node], position, base + node,
            above | uint64_t{1} << node);
  }
}

}  // namespace specfast
