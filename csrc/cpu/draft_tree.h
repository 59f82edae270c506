// One sequence's draft tree, the laws of its rows, and the path that is accepted of it.
#pragma once
#include "core/tree.h"
#include "cpu/row_law.h"
#include "cpu/top_list.h"
#include "params.h"

namespace specfast::cpu::SPECFAST_TIER {

struct AcceptedPath {
  int32_t nodes[kMaxNodes];
  int32_t size = 0;

  int32_t last() const { return size ? nodes[size - 1] : -1; }
};

// Nodes are indices, -1 is the root; a node's row decides its children.
struct DraftTree {
  const DraftTrees& trees;
  const RowLaws& laws;
  int64_t b;

  int32_t length() const { return trees.lengths[b]; }
  int32_t token(int32_t node) const { return trees.draft_tokens[b * trees.N + node]; }
  const int32_t* parents() const { return trees.parents + b * trees.N; }
  int64_t row(int32_t node) const { return (int64_t)trees.row_base[b] + 1 + node; }
  const RowLaw& law(int32_t node) const { return laws[row(node)]; }
  const float* logits(int32_t node) const { return laws.logits(row(node)); }
  uint64_t seed(int32_t node) const { return (uint64_t)laws.p.seeds[row(node)]; }
  uint32_t position(int32_t node) const { return (uint32_t)laws.p.positions[row(node)]; }
  bool is_greedy() const { return specfast::is_greedy(laws.p.temperature[row(-1)]); }
  int32_t status(int32_t node) const { return trees.row_status[row(node)] | law(node).status; }

  // The lowest child from node `first` on. A row that is no good judges nothing: it has none.
  int32_t child(int32_t node, int32_t first) const {
    if (status(node) != kRowOk) return -1;
    return next_child(parents(), length(), node, first > node ? first : node + 1);
  }
  // What the target decides here by its own noise, as in plain decoding; -1: nothing.
  int32_t target_token(int32_t node) const {
    const RowLaw& r = law(node);
    if (status(node) != kRowOk) return -1;
    if (!r.drawn) return r.peak.id;
    TopOne top;
    draw_between(r, logits(node), 0, laws.p.V, {{seed(node), position(node)}, nullptr}, top);
    return top.best.id;
  }
  // A greedy target decides by itself: the nodes that are its tokens.
  AcceptedPath match() const {
    AcceptedPath path;
    for (int32_t node = -1; status(node) == kRowOk; path.nodes[path.size++] = node) {
      const int32_t* tokens = trees.draft_tokens + b * trees.N;
      node = matching_child(tokens, parents(), length(), node, law(node).peak.id);
      if (node < 0) break;
    }
    return path;
  }
  void write(const AcceptedPath& path, int32_t next) const {
    int32_t all = status(-1);
    int32_t* out = trees.path + b * trees.N;
    for (int32_t j = 0; j < path.size; j++) all |= status(out[j] = path.nodes[j]);
    for (int64_t j = path.size; j < trees.N; j++) out[j] = -1;
    trees.num_accepted[b] = path.size;
    trees.next_tokens[b] = next;
    trees.status[b] = all;
  }
  // A sequence whose tail stops short decides nothing.
  bool has_rows() const { return trees.row_base[b] >= 0; }
  void write_nothing() const {
    for (int64_t j = 0; j < trees.N; j++) trees.path[b * trees.N + j] = -1;
    trees.num_accepted[b] = trees.status[b] = 0;
    trees.next_tokens[b] = -1;
  }
};

// decide(tree) for every sequence that has rows, after the laws of all rows.
template <class Decide>
void each_tree(const DraftTrees& trees, const RowLaws& laws, Decide decide) {
  laws.parallel_for(trees.B, 1, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t b = first; b < last; b++) {
      DraftTree tree{trees, laws, b};
      tree.has_rows() ? decide(tree) : tree.write_nothing();
    }
  });
}

}  // namespace specfast::cpu::SPECFAST_TIER
