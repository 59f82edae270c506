// p/q rejection over a draft tree (Leviathan et al. 2023, Sun et al. 2024, Weng et al. 2025). The
// token rule judges from the root on, each node by itself; block and traversal verification judge
// leaves first, by `acc`, which is carried down the path. Siblings are judged in order, each
// against what those before it left.
#include "cpu/draft_tree.h"
#include "cpu/node_law.h"
#include "cpu/scratch.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

struct Level {
  int32_t node;         // -1: the root
  int32_t next_child;   // those below it are judged
  double acc;           // the probability that it is accepted if no child is
  DraftLaw drawn_from;  // the node itself
  NodeLaw left;         // of the target's law here
};

class Verification {
 public:
  // room: a block of `stride` floats for each level that may get weights of its own.
  Verification(const RejectionSampleParams& p, const DraftTree& tree, float* room, int64_t stride)
      : p_(p), tree_(tree), room_(room), stride_(stride) {}

  void run() {
    enter(-1, 1.0, {});
    p_.by_token ? from_the_root() : from_the_leaves();
    AcceptedPath path;
    for (int32_t depth = 1; depth <= depth_; depth++) path.nodes[path.size++] = levels_[depth].node;
    tree_.write(path, next_token());
  }

 private:
  Level& here() { return levels_[depth_]; }

  void enter(int32_t node, double acc, const DraftLaw& drawn_from) {
    Level& level = levels_[++depth_];
    level.node = node, level.next_child = 0, level.acc = acc, level.drawn_from = drawn_from;
    level.left = NodeLaw{};
    level.left.row = &tree_.law(node), level.left.logits = tree_.logits(node);
    level.left.vocab = p_.V, level.left.room = room_ + depth_ * stride_;
  }

  // The next child to judge, or -1.
  int32_t child() {
    Level& level = here();
    int32_t node = tree_.child(level.node, level.next_child);
    if (node >= 0 && !level.left.total) level.left.measure_row();
    return node;
  }

  // What a node was drawn from; its earlier siblings' tokens are left out.
  DraftLaw law_of(int32_t node) const {
    int64_t row = p_.law_row ? p_.law_row[tree_.b * p_.N + node] : -1;
    if (row < 0) return {};
    DraftLaw law{p_.laws + row * p_.law_vocab, p_.law_vocab, p_.vocab_map};
    int32_t earlier[kMaxNodes], parent = tree_.parents()[node];
    int count = 0;
    for (int32_t i = parent + 1; (i = next_child(tree_.parents(), node, parent, i)) >= 0; i++) {
      int32_t id = law.index_of(tree_.token(i)), at = count;
      if (id < 0) continue;
      for (; at > 0 && earlier[at - 1] > id; at--) earlier[at] = earlier[at - 1];
      earlier[at] = id, count++;
    }
    law.exclude(earlier, count);
    return law.share(tree_.token(node)) > 0.0 ? law : DraftLaw{};
  }

  double acc_of(int32_t node, const DraftLaw& law) {
    int32_t token = tree_.token(node);
    double p = here().acc * here().left.share(token), q = law.z ? law.share(token) : 1.0;
    return p < q ? p / q : 1.0;
  }

  bool accepted(int32_t node, double acc) const {
    int32_t parent = tree_.parents()[node];
    return coin_falls(step_noise(tree_.seed(parent), tree_.position(parent), kNoiseAccept, node,
                                 (uint32_t)p_.roots[tree_.b]),
                      acc);
  }

  // Leaves of the law here, and of its acc, what this child has not.
  void reject(int32_t node, const DraftLaw& law) {
    Level& level = here();
    level.next_child = node + 1;
    double rest = law.z ? level.left.subtract(level.acc, law)
                        : level.acc * level.left.take(tree_.token(node));
    if (level.left.total) {
      level.acc = rest / (rest + (1.0 - level.acc));
      return;
    }
    level.left.restore();
    level.next_child = tree_.length();
    if (level.acc < 1.0) level.acc = 0.0;
  }

  void from_the_leaves() {
    for (;;) {
      int32_t node = child();
      if (node >= 0) {
        DraftLaw law = law_of(node);
        enter(node, acc_of(node, law), law);
        continue;
      }
      if (depth_ == 0 || accepted(here().node, here().acc)) return;
      depth_--;
      reject(levels_[depth_ + 1].node, levels_[depth_ + 1].drawn_from);
    }
  }

  void from_the_root() {
    for (int32_t node = child(); node >= 0; node = child()) {
      DraftLaw law = law_of(node);
      if (accepted(node, acc_of(node, law)))
        enter(node, 1.0, law);
      else
        reject(node, law);
    }
  }

  // By the target's own noise where no child was rejected, as in plain decoding.
  int32_t next_token() {
    const Level& level = here();
    if (!level.left.is_residual) return tree_.target_token(level.node);
    return level.left.draw(step_noise(tree_.seed(level.node), tree_.position(level.node),
                                      kNoiseResidual, level.node, (uint32_t)p_.roots[tree_.b]));
  }

  const RejectionSampleParams& p_;
  const DraftTree& tree_;
  float* room_;
  int64_t stride_;
  int32_t depth_ = -1;
  Level levels_[kMaxNodes + 1];
};

// Levels that may get weights of their own: the depth of the deepest node with a law.
int64_t num_rooms(const RejectionSampleParams& p, const DraftTree& tree) {
  int64_t depth[kMaxNodes], most = 0;
  for (int32_t node = 0; p.law_row && node < tree.length(); node++) {
    int32_t parent = tree.parents()[node];
    depth[node] = parent < 0 ? 1 : depth[parent] + 1;
    if (p.law_row[tree.b * p.N + node] >= 0 && depth[node] > most) most = depth[node];
  }
  return most;
}

void verify(const RejectionSampleParams& p, const DraftTree& tree) {
  if (tree.is_greedy()) {
    AcceptedPath path = tree.match();
    return tree.write(path, tree.target_token(path.last()));
  }
  static thread_local Scratch scratch;
  int64_t stride = (p.V + 15) / 16 * 16;
  char* room = scratch.reserve(num_rooms(p, tree) * stride * (int64_t)sizeof(float));
  Verification(p, tree, reinterpret_cast<float*>(room), stride).run();
}

}  // namespace

void rejection_sample(const RejectionSampleParams& p, ParallelFor parallel_for) {
  FloatEnv env;
  static thread_local Scratch scratch;
  RowLaws laws(p, parallel_for);
  carve_from(scratch, [&](Carver& c) { laws.carve(c); });
  laws.plan();
  each_tree(p, laws, [&](const DraftTree& tree) { verify(p, tree); });
}

}  // namespace specfast::cpu::SPECFAST_TIER
