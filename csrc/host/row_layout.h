// Lays a batch's tails and draft trees out as the rows of one forward.
#pragma once

#include <cstdint>
#include <vector>

namespace specfast {

// B sequences with up to N draft nodes each; every proposal was checked before.
struct BatchView {
  const int32_t* tail_tokens;   // [sum of num_tokens] the tails, one after the other
  const int32_t* starts;        // [B] logical position of the tail's first token
  const int32_t* num_tokens;    // [B] length of the tail
  const bool* decides;          // [B] the tail reaches the last token: its rows get logits
  const int32_t* lengths;       // [B] number of draft nodes
  const int32_t* tokens;        // [B, N]
  const int32_t* parents;       // [B, N]
  const int32_t* block_tables;  // [B, max_blocks]
  int64_t B, N, max_blocks, block_size;
};

// M rows: for each sequence its tail, then its nodes. R rows with logits: for each sequence that
// decides its root, then its nodes.
struct RowLayout {
  std::vector<int32_t> token_ids, positions;  // [M]
  std::vector<int64_t> slots, node_bits;      // [M]
  std::vector<int32_t> qo_indptr;             // [B + 1]
  std::vector<int32_t> row_base;              // [B] first logit row, -1: none
  std::vector<int64_t> logit_rows, row_seq;   // [R] the row, its sequence
  std::vector<int32_t> decided_positions;     // [R] position of the token that the row decides

  explicit RowLayout(const BatchView& batch);

 private:
  void add_row(const BatchView& batch, int64_t b, int32_t token, int64_t position, int64_t slot,
               uint64_t bits);
  void add_nodes(const BatchView& batch, int64_t b);
};

}  // namespace specfast
