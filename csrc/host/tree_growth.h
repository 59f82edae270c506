// Grows the draft trees of a batch, a depth a round: the ranked candidates of one draft forward go
// in, the rows of the next one come out, and in the end the trees that the target is to verify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specfast {

// What is worth drafting. A node survives if it and all its ancestors are accepted.
struct GrowthRules {
  int32_t width;       // nodes of a tree that one draft forward extends
  int32_t children;    // candidates taken of each
  float min_survival;  // of a node: below, its row in the target doesn't pay
  float min_extended;  // of the nodes extended, in sum: below, the draft forward doesn't pay
  bool is_drawn;  // candidates were drawn: none is left out for what it is, only for its number
};

struct GrowthLimits {
  int32_t base;   // number of tokens, and so the position of a node of depth 0
  int32_t depth;  // 0: no tree here, and no candidates
  int32_t nodes;  // that the target verifies
  int32_t slots;  // from base on: the KV of the nodes that are fed
};

// The rows of one draft forward. Node i of those fed lies at slot base + i, bit i of node_bits.
struct DraftRows {
  std::vector<int32_t> token_ids, positions;  // [M]
  std::vector<int64_t> slots, node_bits;      // [M]
  std::vector<int32_t> qo_indptr;             // [B + 1]
  std::vector<int64_t> row_seq;               // [M]
  std::vector<int32_t> nodes;                 // [M] the row's number in its tree
  std::vector<int64_t> parents;               // [M] of all rows so far, the one that proposed it
};

// Padded to the largest tree, N nodes: with -1, confidence with 0. rows: of all rows whose
// candidates came in, one after the other, the one that a node was a candidate of.
struct GrownTrees {
  std::vector<int32_t> tokens, parents, lengths;  // [B, N], [B, N], [B]
  std::vector<float> confidence;                  // [B, N]
  std::vector<int32_t> rows;                      // [B, N]
};

class TreeGrowth {
 public:
  // limits [B], block_tables [B, max_blocks].
  TreeGrowth(GrowthRules rules, std::vector<GrowthLimits> limits, std::vector<int32_t> block_tables,
             int64_t block_size);

  // ids, confidence [R, m]: the candidates of each row of the last forward, best first; of the
  // first one, of each sequence with a depth. An id of -1 is none. Rows come back in the order in
  // which their candidates are expected.
  DraftRows grow(const int32_t* ids, const float* confidence, int64_t m);
  int64_t num_rows() const;  // whose candidates grow() expects

  // The best nodes within the limits, in an order in which parents come first.
  GrownTrees trees() const;

 private:
  // The trunk is the path of first candidates. It is kept whatever else there is, so that a tree
  // holds the chain that would have been drafted in its place.
  struct Node {
    int32_t token, parent, depth, row;
    float confidence, survival;
    bool trunk;
    uint64_t bits;  // of it and its ancestors among the fed; 0 until fed
  };
  struct Tree {
    GrowthLimits limits;
    std::vector<Node> nodes;
    std::vector<int32_t> frontier;  // nodes fed last, -1 the root
    int32_t num_fed = 0;
  };

  void add_children(Tree& tree, int32_t parent, const int32_t* ids, const float* confidence,
                    int64_t m) const;
  int32_t num_drawable(const Tree& tree, int32_t depth) const;
  int32_t room(const Tree& tree) const;
  void choose_frontier(Tree& tree, size_t first) const;
  void feed(Tree& tree, int64_t b, DraftRows& rows) const;
  std::vector<int32_t> kept(const Tree& tree) const;

  GrowthRules rules_;
  std::vector<Tree> trees_;
  int32_t num_rows_seen_ = 0;
  std::vector<int32_t> block_tables_;
  int64_t block_size_;
};

}  // namespace specfast
