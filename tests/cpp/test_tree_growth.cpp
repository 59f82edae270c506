// Growing draft trees, against what must hold of them whatever the candidates are.
#include <cmath>
#include <random>

#include "check.h"
#include "host/tree_growth.h"

using namespace specfast;

namespace {

constexpr int64_t kRanked = 4, kBlockSize = 4, kMaxBlocks = 40;

struct Grown {
  GrownTrees trees;
  std::vector<DraftRows> rounds;
};

std::vector<int32_t> tables_of(size_t sequences) {
  std::vector<int32_t> tables;
  for (size_t i = 0; i < sequences * kMaxBlocks; i++) tables.push_back((int32_t)(i * 7 % 1000));
  return tables;
}

// Candidates are a function of the token above, so that equal paths get equal candidates.
Grown grow(GrowthRules rules, const std::vector<GrowthLimits>& limits, bool with_nan = false) {
  TreeGrowth growth(rules, limits, tables_of(limits.size()), kBlockSize);
  std::vector<int32_t> above;
  for (const GrowthLimits& limit : limits)
    if (limit.depth > 0) above.push_back(limit.base);
  Grown grown;
  while (!above.empty()) {
    std::vector<int32_t> ids;
    std::vector<float> confidence;
    for (int32_t token : above) {
      std::mt19937 random((unsigned)token);
      float left = 1.0f;
      for (int j = 0; j < kRanked; j++) {
        float share = std::uniform_real_distribution<float>(0.3f, 0.9f)(random);
        ids.push_back((token * 5 + j) % 9973);
        confidence.push_back(with_nan && j == 1 ? NAN : left * share);
        left *= 1 - share;
      }
    }
    CHECK_EQ(growth.num_rows(), (int64_t)above.size());
    grown.rounds.push_back(growth.grow(ids.data(), confidence.data(), kRanked));
    above = grown.rounds.back().token_ids;
  }
  grown.trees = growth.trees();
  return grown;
}

size_t width_of(const GrownTrees& trees) { return trees.tokens.size() / trees.lengths.size(); }

void check_sound(const Grown& grown, const std::vector<GrowthLimits>& limits) {
  const GrownTrees& trees = grown.trees;
  size_t width = width_of(trees);
  for (size_t b = 0; b < limits.size(); b++) {
    CHECK(trees.lengths[b] <= limits[b].nodes);
    std::vector<int32_t> depth;
    for (int32_t i = 0; i < trees.lengths[b]; i++) {
      int32_t parent = trees.parents[b * width + i];
      CHECK(parent >= -1 && parent < i);
      depth.push_back(parent < 0 ? 1 : depth[parent] + 1);
      CHECK(depth.back() <= limits[b].depth);
      CHECK(trees.tokens[b * width + i] >= 0);
    }
  }
  for (const DraftRows& rows : grown.rounds)
    for (size_t i = 0; i < rows.token_ids.size(); i++) {
      const GrowthLimits& limit = limits[rows.row_seq[i]];
      uint64_t bits = (uint64_t)rows.node_bits[i];
      CHECK_EQ(__builtin_popcountll(bits), rows.positions[i] - limit.base + 1);
      CHECK(63 - __builtin_clzll(bits) < limit.slots);
    }
}

}  // namespace

TEST(trees_keep_their_limits) {
  std::mt19937 random(1);
  auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (int trial = 0; trial < 300; trial++) {
    GrowthRules rules{draw(1, 4), draw(1, 4), 0.01f * (float)draw(0, 10), 0.1f * (float)draw(0, 4),
                      trial % 2 == 0};
    std::vector<GrowthLimits> limits;
    for (int b = draw(1, 4); b > 0; b--) {
      int32_t depth = draw(0, 6), nodes = depth ? depth + draw(0, 8) : 0;
      limits.push_back({draw(1, 90), depth, nodes, nodes + draw(0, 20)});
    }
    check_sound(grow(rules, limits, trial % 3 == 0), limits);
  }
}

TEST(a_tree_holds_the_chain) {
  for (int32_t base = 1; base < 60; base++) {
    std::vector<GrowthLimits> chain_limits{{base, 6, 6, 6}}, tree_limits{{base, 6, 12, 20}};
    GrownTrees chain = grow({1, 1, 0.05f, 0.2f, false}, chain_limits).trees;
    GrownTrees tree = grow({3, 3, 0.05f, 0.2f, false}, tree_limits).trees;
    int32_t at = -1;
    for (int32_t i = 0; i < chain.lengths[0]; i++) {
      int32_t found = -1;
      for (int32_t j = 0; j < tree.lengths[0]; j++)
        if (tree.parents[j] == at && tree.tokens[j] == chain.tokens[i]) found = j;
      CHECK(found >= 0);
      at = found;
    }
  }
}

TEST(a_chain_takes_the_best_candidate_and_stops_where_it_does_not_pay) {
  TreeGrowth growth({1, 1, 0.1f, 0.5f, false}, {{8, 3, 3, 3}}, tables_of(1), kBlockSize);
  std::vector<int32_t> ids{5, 6, -1, -1};
  std::vector<float> sure{0.8f, 0.1f, 0, 0};
  DraftRows rows = growth.grow(ids.data(), sure.data(), kRanked);
  CHECK(rows.token_ids == std::vector<int32_t>{5} && rows.positions == std::vector<int32_t>{8});
  CHECK(rows.slots == std::vector<int64_t>{14 * kBlockSize});  // third block of the table
  ids[0] = 7;
  std::vector<float> unsure{0.6f, 0.1f, 0, 0};
  CHECK(growth.grow(ids.data(), unsure.data(), kRanked).token_ids.empty());  // 0.48 < 0.5
  CHECK(growth.trees().tokens == (std::vector<int32_t>{5, 7}));
}

// What was drawn is submitted whatever it is, and its number is known before its children are
// drawn.
TEST(drawn_trees_leave_nothing_out) {
  std::vector<GrowthLimits> limits{{5, 4, 9, 9}, {6, 3, 3, 3}, {7, 0, 0, 0}, {8, 5, 20, 40}};
  Grown unlikely = grow({2, 3, 0.9f, 0.0f, true}, limits),
        likely = grow({2, 3, 0, 0, true}, limits);
  CHECK(unlikely.trees.tokens == likely.trees.tokens);
  size_t width = width_of(likely.trees);
  for (const DraftRows& rows : likely.rounds)
    for (size_t i = 0; i < rows.nodes.size(); i++)
      CHECK_EQ(likely.trees.tokens[rows.row_seq[i] * width + rows.nodes[i]], rows.token_ids[i]);
  for (size_t b = 0; b < limits.size(); b++) {
    std::vector<int32_t> depth;
    for (int32_t i = 0; i < likely.trees.lengths[b]; i++) {
      int32_t parent = likely.trees.parents[b * width + i];
      depth.push_back(parent < 0 ? 1 : depth[parent] + 1);
    }
    CHECK_EQ(depth.empty() ? 0 : depth.back(), limits[b].depth);  // the trunk reaches the end
  }
}

TEST(candidates_know_their_row) {
  Grown grown = grow({2, 2, 0, 0, false}, {{5, 3, 12, 12}, {9, 3, 12, 12}});
  const GrownTrees& trees = grown.trees;
  std::vector<int32_t> row_tokens{5, 9};  // of the roots, then of every row in turn
  for (const DraftRows& rows : grown.rounds)
    row_tokens.insert(row_tokens.end(), rows.token_ids.begin(), rows.token_ids.end());
  size_t width = width_of(trees);
  for (size_t b = 0; b < 2; b++)
    for (int32_t i = 0; i < trees.lengths[b]; i++) {
      int32_t parent = trees.parents[b * width + i];
      int32_t above = parent < 0 ? row_tokens[b] : trees.tokens[b * width + parent];
      CHECK_EQ(row_tokens[trees.rows[b * width + i]], above);
    }
}

TEST(what_is_no_candidate_is_not_drafted) {
  TreeGrowth growth({2, 4, 0.0f, 0.0f, false}, {{1, 2, 8, 8}}, tables_of(1), kBlockSize);
  std::vector<int32_t> ids{-1, 3, 4, -1};
  std::vector<float> confidence{0.5f, NAN, 0.2f, 0.1f};
  CHECK(growth.grow(ids.data(), confidence.data(), kRanked).token_ids == std::vector<int32_t>{4});
  std::vector<int32_t> none(kRanked, -1);
  CHECK(growth.grow(none.data(), confidence.data(), kRanked).token_ids.empty());
  CHECK(growth.trees().tokens == std::vector<int32_t>{4});
}
