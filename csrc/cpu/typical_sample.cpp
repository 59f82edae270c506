// Medusa's typical acceptance (Cai et al. 2024): the longest path of drafts that are likely enough,
// p >= min(threshold, alpha exp(-H)). What it emits is not the target's law.
#include "cpu/draft_tree.h"
#include "cpu/node_law.h"
#include "cpu/scratch.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

// exp(-H) of a law of weights w = 2^-o with sum S is 2^(-sum w o / S) / S.
float inverse_perplexity(const NodeLaw& law) {
  const RowLaw& r = *law.row;
  F32x16 exponent = broadcast(r.scale.exponent);
  uint64_t surprise = total_mass(0, law.vocab, [&](int64_t i, int64_t) {
    F32x16 z = supported_z(r, law.logits, i, law.vocab);
    return weight(z, exponent) * (exponent - max(z * broadcast(kLog2e), broadcast(-0x1p127f)));
  });
  float total = (float)(int64_t)law.total * 0x1p-40f;
  return specfast::exp2((float)(int64_t)surprise * -0x1p-40f / total) / total;
}

struct TypicalRow {
  NodeLaw law;
  double bar = -1.0;  // not known yet

  void measure(const TypicalSampleParams& p, const DraftTree& tree, int32_t node) {
    law.row = &tree.law(node), law.logits = tree.logits(node), law.vocab = p.V;
    law.measure_row();
    bar = specfast::min(p.threshold, p.alpha * inverse_perplexity(law));
  }
};

// The deepest node all of whose path is typical; of equals the lowest. depth is by node + 1.
int32_t deepest_typical(const TypicalSampleParams& p, const DraftTree& tree) {
  int32_t depth[kMaxNodes + 1] = {0}, best = -1;
  TypicalRow rows[kMaxNodes + 1];
  for (int32_t node = 0; node < tree.length(); node++) {
    int32_t parent = tree.parents()[node];
    depth[node + 1] = -1;
    if (depth[parent + 1] < 0 || tree.status(parent) != kRowOk) continue;
    TypicalRow& row = rows[parent + 1];
    if (row.bar < 0.0) row.measure(p, tree, parent);
    if (row.law.share(tree.token(node)) < row.bar) continue;
    depth[node + 1] = depth[parent + 1] + 1;
    if (depth[node + 1] > depth[best + 1]) best = node;
  }
  return best;
}

void verify(const TypicalSampleParams& p, const DraftTree& tree) {
  AcceptedPath path;
  if (tree.is_greedy()) {
    path = tree.match();
  } else {
    int32_t nodes[kMaxNodes], n = 0;
    for (int32_t i = deepest_typical(p, tree); i >= 0; i = tree.parents()[i]) nodes[n++] = i;
    while (n > 0) path.nodes[path.size++] = nodes[--n];
  }
  tree.write(path, tree.target_token(path.last()));
}

}  // namespace

void typical_sample(const TypicalSampleParams& p, ParallelFor parallel_for) {
  FloatEnv env;
  static thread_local Scratch scratch;
  RowLaws laws(p, parallel_for);
  carve_from(scratch, [&](Carver& c) { laws.carve(c); });
  laws.plan();
  each_tree(p, laws, [&](const DraftTree& tree) { verify(p, tree); });
}

}  // namespace specfast::cpu::SPECFAST_TIER
