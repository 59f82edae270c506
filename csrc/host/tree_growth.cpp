#include "host/tree_growth.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/paged_kv.h"

namespace specfast {

constexpr int32_t kMaxFed = 64;  // ancestors are the bits of an int64

TreeGrowth::TreeGrowth(GrowthRules rules, std::vector<GrowthLimits> limits,
                       std::vector<int32_t> block_tables, int64_t block_size)
    : rules_(rules), block_tables_(std::move(block_tables)), block_size_(block_size) {
  for (const GrowthLimits& limit : limits) {
    trees_.push_back({limit, {}, {}, 0});
    if (limit.depth > 0) trees_.back().frontier.push_back(-1);
  }
}

int64_t TreeGrowth::num_rows() const {
  int64_t rows = 0;
  for (const Tree& tree : trees_) rows += (int64_t)tree.frontier.size();
  return rows;
}

DraftRows TreeGrowth::grow(const int32_t* ids, const float* confidence, int64_t m) {
  DraftRows rows;
  rows.qo_indptr.push_back(0);
  for (size_t b = 0; b < trees_.size(); b++) {
    Tree& tree = trees_[b];
    size_t first = tree.nodes.size();
    for (int32_t parent : tree.frontier) {
      add_children(tree, parent, ids, confidence, m);
      ids += m, confidence += m, num_rows_seen_++;
    }
    choose_frontier(tree, first);
    feed(tree, (int64_t)b, rows);
    rows.qo_indptr.push_back((int32_t)rows.token_ids.size());
  }
  return rows;
}

void TreeGrowth::add_children(Tree& tree, int32_t parent, const int32_t* ids,
                              const float* confidence, int64_t m) const {
  Node above{-1, -1, -1, -1, 1.0f, 1.0f, true, 0};
  if (parent >= 0) above = tree.nodes[parent];
  for (int64_t j = 0; j < std::min<int64_t>(m, rules_.children); j++) {
    float given = std::min(confidence[j], 1.0f);
    float survival = above.survival * given;
    bool is_kept = rules_.is_drawn ? num_drawable(tree, above.depth + 1) > 0
                                   : survival >= rules_.min_survival;  // NaN isn't
    if (ids[j] < 0 || !is_kept) continue;
    bool trunk = above.trunk && j == 0;
    tree.nodes.push_back(
        {ids[j], parent, above.depth + 1, num_rows_seen_, given, survival, trunk, 0});
  }
}

// Survival never grows down a path, so that of equals the earlier, an ancestor, comes first.
static bool better(float survival, bool trunk, float other_survival, bool other_trunk) {
  return trunk != other_trunk ? trunk : survival > other_survival;
}

// Nodes that may still be drawn at this depth, one being left for every depth below.
int32_t TreeGrowth::num_drawable(const Tree& tree, int32_t depth) const {
  int32_t below = tree.limits.depth - 1 - depth;
  return std::max(0, tree.limits.nodes - (int32_t)tree.nodes.size() - below);
}

// Nodes that may be fed now; the trunk finds a slot at every depth to come.
int32_t TreeGrowth::room(const Tree& tree) const {
  int32_t free = std::max(0, std::min(tree.limits.slots, kMaxFed) - tree.num_fed);
  int32_t depth = tree.nodes.back().depth, depths_to_come = tree.limits.depth - 2 - depth;
  int32_t room = std::clamp(free - depths_to_come, std::min(free, 1), rules_.width);
  if (!rules_.is_drawn) return room;
  int32_t parents = (num_drawable(tree, depth + 1) + rules_.children - 1) / rules_.children;
  return std::min(room, parents);
}

void TreeGrowth::choose_frontier(Tree& tree, size_t first) const {
  tree.frontier.clear();
  if (first == tree.nodes.size() || tree.nodes[first].depth + 1 >= tree.limits.depth) return;
  tree.frontier.resize(tree.nodes.size() - first);
  std::iota(tree.frontier.begin(), tree.frontier.end(), (int32_t)first);
  std::stable_sort(tree.frontier.begin(), tree.frontier.end(), [&](int32_t i, int32_t j) {
    const Node &a = tree.nodes[i], &b = tree.nodes[j];
    return better(a.survival, a.trunk, b.survival, b.trunk);
  });
  tree.frontier.resize(std::min(tree.frontier.size(), (size_t)room(tree)));
  float extended = 0;
  for (int32_t i : tree.frontier) extended += tree.nodes[i].survival;
  if (extended < rules_.min_extended) tree.frontier.clear();
}

void TreeGrowth::feed(Tree& tree, int64_t b, DraftRows& rows) const {
  const int32_t* table = block_tables_.data() + b * (block_tables_.size() / trees_.size());
  for (int32_t i : tree.frontier) {
    Node& node = tree.nodes[i];
    uint64_t above = node.parent < 0 ? 0 : tree.nodes[node.parent].bits;
    node.bits = above | uint64_t{1} << tree.num_fed;
    rows.token_ids.push_back(node.token);
    rows.positions.push_back(tree.limits.base + node.depth);
    rows.slots.push_back(slot_of(table, block_size_, (int64_t)tree.limits.base + tree.num_fed));
    rows.node_bits.push_back((int64_t)node.bits);
    rows.row_seq.push_back(b);
    rows.nodes.push_back(i);
    rows.parents.push_back(node.row);
    tree.num_fed++;
  }
}

std::vector<int32_t> TreeGrowth::kept(const Tree& tree) const {
  std::vector<int32_t> order(tree.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  if (order.size() <= (size_t)tree.limits.nodes) return order;
  std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
    const Node &a = tree.nodes[i], &b = tree.nodes[j];
    return better(a.survival, a.trunk, b.survival, b.trunk);
  });
  order.resize((size_t)tree.limits.nodes);
  std::sort(order.begin(), order.end());
  return order;
}

GrownTrees TreeGrowth::trees() const {
  std::vector<std::vector<int32_t>> chosen;
  size_t width = 0;
  for (const Tree& tree : trees_) {
    chosen.push_back(kept(tree));
    width = std::max(width, chosen.back().size());
  }
  size_t cells = trees_.size() * width;
  GrownTrees out;
  out.tokens = out.parents = out.rows = std::vector<int32_t>(cells, -1);
  out.confidence.resize(cells);
  for (size_t b = 0; b < trees_.size(); b++) {
    std::vector<int32_t> number(trees_[b].nodes.size());
    for (size_t at = 0; at < chosen[b].size(); at++) {
      const Node& node = trees_[b].nodes[chosen[b][at]];
      number[chosen[b][at]] = (int32_t)at;
      out.tokens[b * width + at] = node.token;
      out.parents[b * width + at] = node.parent < 0 ? -1 : number[node.parent];
      out.confidence[b * width + at] = node.confidence;
      out.rows[b * width + at] = node.row;
    }
    out.lengths.push_back((int32_t)chosen[b].size());
  }
  return out;
}

}  // namespace specfast
