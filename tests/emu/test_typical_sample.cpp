#include "trees.h"

namespace {

using namespace sampling;
using specfast::TypicalSampleParams;

std::vector<int32_t> on_cpu(const Trees& trees) {
  std::vector<int32_t> out((size_t)trees.size_of_output());
  TypicalSampleParams p{};
  trees.set(p, out.data());
  p.threshold = 0.09f, p.alpha = 0.3f;
  specfast::cpu::typical_sample(p, specfast::serial_for);
  return out;
}

template <class T>
std::vector<int32_t> on_device(const Trees& trees) {
  DeviceTrees<T> in(trees);
  return everywhere([&] {
    Device<int32_t> out((size_t)trees.size_of_output());
    TypicalSampleParams p{};
    in.set(p, out.data());
    p.threshold = 0.09f, p.alpha = 0.3f;
    Device<char> workspace(specfast::cuda::workspace_bytes(p));
    p.workspace = workspace.data();
    specfast::cuda::typical_sample(p, nullptr);
    return out.host();
  });
}

void check(Trees trees, Trees taken_as) {
  auto expected = on_cpu(taken_as), got = on_device<float>(trees);
  CHECK_BYTES(got, expected);
  trees.rows.round(), taken_as.rows.round();
  auto expected_of_bf16 = on_cpu(taken_as), got_of_bf16 = on_device<Bf16>(trees);
  CHECK_BYTES(got_of_bf16, expected_of_bf16);
}
void check(const Trees& trees) { check(trees, trees); }

Trees some_trees(int64_t count, int64_t nodes, int64_t vocab) {
  Trees trees(nodes, vocab, vocab + 3);
  for (int64_t n = 0; n < count; n++) {
    if (n % 6 == 5) trees.add_padding();
    auto parents = some_parents(n, nodes);
    trees.add(parents, some_tokens(n, (int64_t)parents.size(), vocab), some_settings(n, vocab));
  }
  return trees;
}

TEST(typical_sample_gives_the_bytes_of_the_cpu) {
  for (int64_t V : {3, 100, 8193}) check(some_trees(V < 1000 ? 14 : 2, 6, V));
}

TEST(typical_sample_takes_64_nodes) { check(some_trees(2, 64, 10)); }

TEST(typical_sample_says_what_rows_lack) {
  Trees trees = some_trees(14, 5, 20);
  for (size_t row = 0; row < trees.row_status.size(); row++) {
    if (row % 5 == 1) trees.row_status[row] = specfast::kRowNonFiniteKv;
    if (row % 7 == 2) trees.rows.logits[row * trees.rows.stride + 4] = kNan;
    if (row % 11 == 3) std::fill_n(&trees.rows.logits[row * trees.rows.stride], 20, -kInf);
  }
  check(trees);
}

// Logits that temperature clamps to one score, of which a top-k keeps the lowest ids.
TEST(typical_sample_draws_none_that_top_k_denies) {
  Trees trees(2, 20, 23);
  for (int32_t k = 1; k < 8; k++) trees.add({-1, 0}, {3, 4}, {0.7f, k});
  for (float& x : trees.rows.logits) x *= 1e37f;
  check(trees);
}

TEST(typical_sample_takes_many_sequences) {
  Trees trees(1, 3);
  for (int32_t n = 0; n < 300; n++) trees.add({-1}, {n % 3}, {1.0f, 0, 1.0f, 0.0f, n});
  check(trees);
}

TEST(typical_sample_survives_junk) {
  Junk junk(some_trees(14, 6, 20));
  // Parents that come later, or are none: theirs are on no path.
  for (size_t i = 3; i < junk.given.parents.size(); i += 7) {
    junk.given.parents[i] = pick({-2, 6, 63, INT32_MAX, INT32_MIN}, (int64_t)i);
    junk.taken_as.tokens[i] = 19;
  }
  check(junk.given, junk.taken_as);
}

TEST(typical_sample_takes_no_more_than_64_nodes) {
  Trees trees(65, 10);
  trees.add(std::vector<int32_t>(65, -1), std::vector<int32_t>(65, 3), {});
  Trees taken_as = trees;
  taken_as.row_base[0] = -1;
  check(trees, taken_as);
}

}  // namespace
