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

void check(Trees trees) {
  auto expected = on_cpu(trees), got = on_device<float>(trees);
  CHECK_BYTES(got, expected);
  trees.rows.round();
  auto expected_of_bf16 = on_cpu(trees), got_of_bf16 = on_device<Bf16>(trees);
  CHECK_BYTES(got_of_bf16, expected_of_bf16);
}

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

}  // namespace
