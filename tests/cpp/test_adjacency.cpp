// The adjacency of Token Recycling: what is kept, and that no tree leaves its limits.
#include "host/adjacency.h"

#include <random>

#include "check.h"

using specfast::Adjacency;
using specfast::DraftTree;
using specfast::DrawLaw;

namespace {

constexpr DrawLaw kGreedy{0.0f, 0, 0};

std::vector<int32_t> successors(const Adjacency& adjacency, int32_t token) {
  return adjacency.draft(token, 1, 64, 0.0f, kGreedy).tokens;
}

}  // namespace

TEST(adjacency_keeps_the_newest_in_front) {
  Adjacency adjacency(10, 3);
  const std::vector<int32_t> text{1, 2, 1, 3, 1, 4, 1, 5, 1, 4}, ids{7, -1, 8};
  adjacency.follow(text.data(), text.size());
  CHECK_BYTES(successors(adjacency, 1), (std::vector<int32_t>{4, 5, 3}));
  const std::vector<float> logits{1.0f, 0.0f, -1.0f};
  adjacency.replace(1, ids.data(), logits.data(), 3);
  CHECK_BYTES(successors(adjacency, 1), (std::vector<int32_t>{7, 8}));
  adjacency.clear();
  CHECK_EQ(successors(adjacency, 1).size(), (size_t)0);
}

TEST(adjacency_trees_stay_within_their_limits) {
  std::mt19937 random(3);
  Adjacency adjacency(50, 8);
  for (int step = 0; step < 300; step++) {
    std::vector<int32_t> text(random() % 20);
    for (int32_t& token : text) token = (int32_t)(random() % 50);
    adjacency.follow(text.data(), text.size());
    const int depth = (int)(random() % 5), nodes = (int)(random() % 65);
    const DrawLaw law{step % 2 ? 1.0f : 0.0f, random(), (uint32_t)random()};
    const DraftTree tree = adjacency.draft((int32_t)(random() % 50), depth, nodes, 0.001f, law);
    CHECK(tree.size() <= nodes);
    std::vector<int> depths;
    for (int i = 0; i < tree.size(); i++) {
      CHECK(tree.parents[i] >= -1 && tree.parents[i] < i);
      depths.push_back(tree.parents[i] < 0 ? 1 : depths[tree.parents[i]] + 1);
      CHECK(depths.back() <= depth);
      for (int j = 0; j < i; j++)
        CHECK(tree.parents[i] != tree.parents[j] || tree.tokens[i] != tree.tokens[j]);
    }
  }
}
