#include "trees.h"

namespace {

using namespace sampling;
using specfast::RejectionSampleParams;

struct Laws {
  int64_t vocab = 0;
  std::vector<float> z;      // [rows, vocab]; none: all drafts are point masses
  std::vector<int32_t> map;  // [vocab] or none
};

template <class Law, class Map, class Rows>
void set_laws(RejectionSampleParams& p, const Laws& laws, const Law& z, const Map& map,
              const Rows& law_row) {
  if (laws.z.empty()) return;
  p.laws = z.data(), p.law_row = law_row.data(), p.law_vocab = laws.vocab;
  p.num_laws = (int64_t)laws.z.size() / laws.vocab;
  p.vocab_map = laws.map.empty() ? nullptr : map.data();
}

std::vector<int32_t> on_cpu(const Trees& trees, const Laws& laws, bool by_token) {
  std::vector<int32_t> out((size_t)trees.size_of_output());
  RejectionSampleParams p{};
  trees.set(p, out.data());
  p.roots = trees.roots.data(), p.by_token = by_token;
  set_laws(p, laws, laws.z, laws.map, trees.law_row);
  specfast::cpu::rejection_sample(p, specfast::serial_for);
  return out;
}

template <class T>
std::vector<int32_t> on_device(const Trees& trees, const Laws& laws, bool by_token) {
  DeviceTrees<T> in(trees);
  Device<float> z(laws.z);
  Device<int32_t> map(laws.map);
  return everywhere([&] {
    Device<int32_t> out((size_t)trees.size_of_output());
    RejectionSampleParams p{};
    in.set(p, out.data());
    p.roots = in.roots.data(), p.by_token = by_token;
    set_laws(p, laws, z, map, in.law_row);
    Device<char> workspace(specfast::cuda::workspace_bytes(p));
    p.workspace = workspace.data();
    specfast::cuda::rejection_sample(p, nullptr);
    return out.host();
  });
}

struct Case {
  Trees trees;
  Laws laws;
};

void check(Case given, Case taken_as) {
  for (bool by_token : {false, true}) {
    auto expected = on_cpu(taken_as.trees, taken_as.laws, by_token);
    auto got = on_device<float>(given.trees, given.laws, by_token);
    CHECK_BYTES(got, expected);
  }
  given.trees.rows.round(), taken_as.trees.rows.round();
  auto expected = on_cpu(taken_as.trees, taken_as.laws, false);
  auto got = on_device<Bf16>(given.trees, given.laws, false);
  CHECK_BYTES(got, expected);
}
void check(const Trees& trees, const Laws& laws) { check({trees, laws}, {trees, laws}); }

// A law for every node; siblings share their parent's, every third node is a point mass.
struct Problem : Case {
  Problem(int64_t count, int64_t nodes, int64_t vocab, bool mapped)
      : Case{Trees(nodes, vocab, vocab + 3), {}} {
    laws.vocab = mapped ? (vocab + 1) / 2 : vocab;
    for (int64_t i = 0; mapped && i < laws.vocab; i++)
      laws.map.push_back((int32_t)((laws.vocab - 1 - i) * 2));
    for (int64_t n = 0; n < count; n++) {
      if (n % 6 == 5) trees.add_padding();
      auto parents = some_parents(n, nodes);
      int32_t first = (int32_t)trees.rows.R();
      std::vector<int32_t> law_row;
      for (size_t i = 0; i < parents.size(); i++)
        law_row.push_back(i % 3 == 2 ? -1 : first + 1 + parents[i]);
      trees.add(parents, some_tokens(n, (int64_t)parents.size(), vocab), some_settings(n, vocab),
                law_row);
    }
    // Some rows have their peak in the last slice.
    for (int64_t row = 0; row < trees.rows.R(); row += 2)
      trees.rows.logits[(size_t)(row * trees.rows.stride + (vocab - 1) / 2 * 2)] += 3.0f;
    // Drafters that know something of the target.
    for (int64_t row = 0; row < trees.rows.R(); row++)
      for (int64_t i = 0; i < laws.vocab; i++) {
        int64_t id = mapped ? laws.map[(size_t)i] : i;
        laws.z.push_back(0.8f * trees.rows.logits[(size_t)(row * trees.rows.stride + id)] +
                         0.3f * (float)(i % 3));
      }
  }
};

TEST(rejection_sample_gives_the_bytes_of_the_cpu) {
  for (int64_t V : {3, 20, 16500})
    for (bool mapped : {false, true}) {
      Problem problem(V < 10 ? 48 : V < 1000 ? 12 : 2, V < 1000 ? 6 : 2, V, mapped);
      check(problem.trees, problem.laws);
    }
}

TEST(rejection_sample_takes_point_masses) {
  for (int64_t V : {3, 100}) check(Problem(8, 6, V, false).trees, {});
}

TEST(rejection_sample_takes_64_nodes) {
  Problem problem(2, 64, 70, false);
  check(problem.trees, problem.laws);
}

TEST(rejection_sample_survives_laws_that_are_no_laws) {
  Problem problem(8, 5, 20, false);
  for (size_t i = 0; i < problem.laws.z.size(); i++)
    if (i % 5 == 0) problem.laws.z[i] = i % 2 ? kNan : kInf;
  std::fill_n(problem.laws.z.begin(), 40, -kInf);
  check(problem.trees, problem.laws);
}

TEST(rejection_sample_says_what_rows_lack) {
  Problem problem(12, 5, 20, true);
  Trees& trees = problem.trees;
  for (size_t row = 0; row < trees.row_status.size(); row++) {
    if (row % 5 == 1) trees.row_status[row] = specfast::kRowNonFiniteKv;
    if (row % 7 == 2) trees.rows.logits[row * trees.rows.stride + 4] = kNan;
    if (row % 11 == 3) std::fill_n(&trees.rows.logits[row * trees.rows.stride], 20, -kInf);
  }
  check(trees, problem.laws);
}

// Besides, laws that are not there, parents of nobody, and a map to ids that are none: 17 has no
// probability and no draft.
TEST(rejection_sample_survives_junk) {
  for (bool mapped : {false, true}) {
    Problem problem(12, 6, 20, mapped);
    Rows& rows = problem.trees.rows;
    for (int64_t row = 0; row < rows.R(); row++) rows.logits[row * rows.stride + 17] = -kInf;
    for (int32_t& token : problem.trees.tokens) token -= token == 17;
    Junk junk(problem.trees);
    Laws laws = problem.laws, taken_as = problem.laws;
    for (size_t i = 0; i < laws.z.size(); i++)
      if (!mapped && i % 20 == 19) laws.z[i] = taken_as.z[i] = -kInf;
    if (mapped) {
      laws.map[2] = -5, laws.map[7] = 21, laws.map[8] = INT32_MIN;
      for (int i : {2, 7, 8}) taken_as.map[i] = 17;
    }
    for (size_t i = 2; i < junk.given.law_row.size(); i += 5)
      junk.given.law_row[i] = (int32_t)(laws.z.size() / laws.vocab), junk.taken_as.law_row[i] = -1;
    for (size_t b = 0; b < problem.trees.lengths.size(); b += 2) {
      if (problem.trees.lengths[b] < 1) continue;
      size_t leaf = b * (size_t)problem.trees.N + (size_t)problem.trees.lengths[b] - 1;
      junk.given.parents[leaf] = pick({-2, 63, INT32_MAX, INT32_MIN}, (int64_t)b);
      junk.taken_as.parents[leaf] = 63, junk.taken_as.law_row[leaf] = -1;
    }
    check({junk.given, laws}, {junk.taken_as, taken_as});
  }
}

}  // namespace
