// The tree that a host drafter returns, and the noise that it ranks siblings by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include "core/logit_law.h"
#include "core/noise.h"

namespace specfast {

constexpr float kTau = 0.75f;  // DESIGN section 1: how sharply perturbed scores foretell acceptance

// Nodes in the order in which they were added: parents[i] < i, -1 is the root.
struct DraftTree {
  std::vector<int32_t> tokens, parents;
  std::vector<float> confidence;  // that a node is accepted, given its parent

  int size() const { return static_cast<int>(tokens.size()); }
  int add(int32_t token, int32_t parent, float estimate) {
    tokens.push_back(token);
    parents.push_back(parent);
    confidence.push_back(estimate);
    return size() - 1;
  }
};

// What a request draws its tokens with; position is that of the root's child.
struct DrawLaw {
  float temperature;
  uint64_t seed;
  uint32_t position;
  bool coupled = true;  // to the target's noise: only where drafts are matched with its tokens

  bool greedy() const { return is_greedy(temperature); }
};

// The noise that sample_rows and rank_candidates add to a token's logit at a position.
inline float target_gumbel(uint64_t seed, uint32_t position, int32_t token) {
  return gumbel_of_id({seed, position}, static_cast<uint32_t>(token));
}

// Shares of siblings in what their parent's row decides: the softmax of their logits / T, or
// coupled that of (logit / T + G) / tau; greedy, of the logits. scores [n] are logits, and become
// shares that sum to 1.
inline void to_shares(std::vector<float>& scores, const int32_t* tokens, const DrawLaw& law,
                      int depth) {
  float best = -INFINITY;
  for (size_t i = 0; i < scores.size(); i++) {
    if (!law.greedy()) scores[i] /= law.temperature;
    if (!law.greedy() && law.coupled)
      scores[i] = (scores[i] + target_gumbel(law.seed, law.position + depth, tokens[i])) / kTau;
    best = std::max(best, scores[i]);
  }
  float total = 0;
  for (float& s : scores) total += s = std::exp(s - best);
  for (float& s : scores) s /= total;
}

// Grows a tree by its likeliest node first, so that cutting it anywhere leaves the best tree of
// that size. `children(state, depth, give)` calls give(token, confidence, state) for each child.
template <class State, class Children>
DraftTree grow_best_first(State root, int max_depth, int max_nodes, float floor,
                          Children&& children) {
  struct Candidate {
    float reach;  // that it and all its ancestors are accepted
    int64_t order;
    int32_t token, parent;
    int depth;
    float confidence;
    State state;
    bool operator<(const Candidate& other) const {
      return reach != other.reach ? reach < other.reach : order > other.order;
    }
  };
  DraftTree tree;
  std::priority_queue<Candidate> open;
  int64_t order = 0;
  auto expand = [&](const State& state, int parent, int depth, float reach) {
    if (depth >= max_depth) return;
    children(state, depth, [&](int32_t token, float confidence, const State& next) {
      const float below = reach * confidence;
      if (below >= floor) open.push({below, order++, token, parent, depth, confidence, next});
    });
  };
  expand(root, -1, 0, 1.0f);
  while (!open.empty() && tree.size() < max_nodes) {
    const Candidate next = open.top();
    open.pop();
    const int node = tree.add(next.token, next.parent, next.confidence);
    expand(next.state, node, next.depth + 1, next.reach);
  }
  return tree;
}

}  // namespace specfast
