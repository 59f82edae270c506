#include "sampling.h"

namespace {

using namespace sampling;
using specfast::DrawCandidatesParams;

std::vector<int32_t> nodes(const Rows& rows) {
  std::vector<int32_t> n;
  for (int64_t row = 0; row < rows.R(); row++) n.push_back((int32_t)(row % 5) - 1);
  return n;
}

std::vector<int32_t> roots(const Rows& rows) {
  std::vector<int32_t> r;
  for (int64_t row = 0; row < rows.R(); row++) r.push_back((int32_t)(3 + row % 7));
  return r;
}

std::vector<int32_t> on_cpu(const Rows& rows, int64_t m, const std::vector<int32_t>& d2t) {
  std::vector<int32_t> ids(rows.R() * m), node = nodes(rows), root = roots(rows);
  std::vector<float> laws(rows.R() * rows.V);
  DrawCandidatesParams p{};
  rows.set(p);
  p.d2t = d2t.empty() ? nullptr : d2t.data(), p.nodes = node.data(), p.roots = root.data();
  p.m = m, p.ids = ids.data(), p.laws = laws.data();
  specfast::cpu::draw_candidates(p, specfast::serial_for);
  return joined({ids}, laws);
}

template <class T>
std::vector<int32_t> on_device(const Rows& rows, int64_t m, const std::vector<int32_t>& d2t) {
  DeviceRows<T> in(rows);
  Device<int32_t> map(d2t), node(nodes(rows)), root(roots(rows));
  return everywhere([&] {
    Device<int32_t> ids(rows.R() * m);
    Device<float> laws(rows.R() * rows.V);
    DrawCandidatesParams p{};
    in.set(p);
    p.d2t = d2t.empty() ? nullptr : map.data(), p.nodes = node.data(), p.roots = root.data();
    p.m = m, p.ids = ids.data(), p.laws = laws.data();
    Device<char> workspace(specfast::cuda::workspace_bytes(p));
    p.workspace = workspace.data();
    specfast::cuda::draw_candidates(p, nullptr);
    return joined({ids.host()}, laws.host());
  });
}

void check(Rows rows, int64_t m, const std::vector<int32_t>& d2t = {}) {
  auto expected = on_cpu(rows, m, d2t), got = on_device<float>(rows, m, d2t);
  CHECK_BYTES(got, expected);
  rows.round();
  auto expected_of_bf16 = on_cpu(rows, m, d2t), got_of_bf16 = on_device<Bf16>(rows, m, d2t);
  CHECK_BYTES(got_of_bf16, expected_of_bf16);
}

// The laws show every row's support.
TEST(draw_candidates_gives_the_bytes_of_the_cpu) {
  for (int64_t V : {1, 3, 100}) {
    Rows rows(V, V + V % 4);
    for (int64_t n = 0; n < 64; n++) rows.add(some_logits(n / 2, V), some_settings(n, V));
    check(rows, 3, V > 1 ? some_map(V) : std::vector<int32_t>{});
  }
}

TEST(draw_candidates_cuts_the_vocabulary_anywhere) {
  for (int64_t V : {8191, 8192, 8193, 20000}) {
    Rows rows(V, V + 3);
    for (int64_t n = 0; n < 7; n++) rows.add(some_logits(n, V), some_settings(5 * n + 2, V));
    check(rows, 9, V % 2 ? some_map(V) : std::vector<int32_t>{});
  }
}

TEST(draw_candidates_takes_a_whole_vocabulary) {
  Rows rows(32000);
  rows.add(logits(rows.V, 1), {1.0f});
  rows.add(logits(rows.V, 3), {0.8f, 0, 0.95f});
  check(rows, 8);
}

TEST(draw_candidates_takes_no_rows_and_no_places) {
  check(Rows(100), 3);
  Rows rows(100);
  rows.add(logits(100, 1));
  check(rows, 0);
}

}  // namespace
