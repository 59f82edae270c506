// draw_candidates, rejection_sample and typical_sample without torch, so that sanitizers see them:
// every array ends where its memory ends.
#include "everywhere.h"

namespace {

using namespace everywhere;
constexpr float kInf = __builtin_inff();

// B trees of N nodes over V tokens, siblings drawn from laws over the first Vd target ids in
// reverse.
struct Problem {
  int64_t B, N, V, Vd, R;
  bool mapped;
  std::vector<float> logits, laws, temperature, top_p, min_p;
  std::vector<int64_t> seeds;
  std::vector<int32_t> top_k, positions, row_status, row_base, roots, tokens, parents, lengths;
  std::vector<int32_t> law_row, map;

  Problem(int64_t batch, int64_t nodes, int64_t vocab, bool with_map)
      : B(batch), N(nodes), V(vocab), Vd(with_map ? (vocab + 1) / 2 : vocab), mapped(with_map) {
    R = B * (N + 1);
    logits = normal(R * V, 5);
    laws = normal(R * Vd, 6);
    seeds.assign(R, 9), row_status.assign(R, 0), map.resize(Vd);
    for (int64_t i = 0; i < Vd; i++) map[i] = (int32_t)(Vd - 1 - i);
    for (int64_t b = 0; b < B; b++) add_tree(b);
  }

  void add_tree(int64_t b) {
    row_base.push_back((int32_t)(b * (N + 1)));
    roots.push_back((int32_t)(10 * b));
    lengths.push_back((int32_t)(b % 4 == 3 ? 0 : N - b % 2));
    for (int64_t i = 0; i <= N; i++) {
      temperature.push_back(b % 5 == 4 ? 0.0f : 0.7f);
      top_k.push_back(b % 3 ? 0 : (int32_t)(V / 2));
      top_p.push_back(b % 2 ? 1.0f : 0.9f);
      min_p.push_back(0.0f);
      positions.push_back(roots[b] + (int32_t)i);
    }
    for (int64_t i = 0; i < N; i++) {
      int32_t parent = (int32_t)(i / 2) - 1;
      tokens.push_back((int32_t)((3 * i + b) % Vd));
      parents.push_back(parent);
      law_row.push_back(i % 3 == 2 ? -1 : (int32_t)(b * (N + 1) + 1 + parent));
    }
  }

  template <class Params>
  void set_rows(Params& p) const {
    p.logits = logits.data(), p.logits_stride = V, p.R = R, p.V = V;
    p.temperature = temperature.data(), p.top_k = top_k.data(), p.top_p = top_p.data();
    p.min_p = min_p.data(), p.seeds = seeds.data(), p.positions = positions.data();
  }

  template <class Params>
  std::vector<int32_t> set_trees(Params& p) const {
    std::vector<int32_t> out(B * (N + 3), 77);
    p.row_status = row_status.data(), p.row_base = row_base.data();
    p.draft_tokens = tokens.data(), p.parents = parents.data(), p.lengths = lengths.data();
    p.B = B, p.N = N;
    p.path = out.data(), p.num_accepted = p.path + B * N;
    p.next_tokens = p.num_accepted + B, p.status = p.next_tokens + B;
    return out;
  }

  std::vector<int32_t> reject(ParallelFor pool, bool by_token, bool with_laws) const {
    specfast::RejectionSampleParams p{};
    set_rows(p);
    std::vector<int32_t> out = set_trees(p);
    p.roots = roots.data(), p.by_token = by_token;
    if (with_laws) {
      p.laws = laws.data(), p.num_laws = R, p.law_vocab = Vd, p.law_row = law_row.data();
      p.vocab_map = mapped ? map.data() : nullptr;
    }
    specfast::cpu::rejection_sample(p, pool);
    return out;
  }

  std::vector<int32_t> typical(ParallelFor pool) const {
    specfast::TypicalSampleParams p{};
    set_rows(p);
    std::vector<int32_t> out = set_trees(p);
    p.threshold = 0.09f, p.alpha = 0.3f;
    specfast::cpu::typical_sample(p, pool);
    return out;
  }

  std::vector<int32_t> draw(ParallelFor pool, int64_t m) const {
    specfast::DrawCandidatesParams p{};
    set_rows(p);
    std::vector<int32_t> ids(R * m), nodes(R, 3), where(R, 2), d2t(V);
    std::vector<float> law(R * V);
    for (int64_t i = 0; i < V; i++) d2t[i] = (int32_t)(2 * i + 1);
    p.d2t = mapped ? d2t.data() : nullptr, p.nodes = nodes.data(), p.roots = where.data();
    p.ids = ids.data(), p.laws = law.data(), p.m = m;
    specfast::cpu::draw_candidates(p, pool);
    size_t n = ids.size();
    ids.resize(n + law.size());
    memcpy(ids.data() + n, law.data(), law.size() * sizeof(float));
    return ids;
  }

  // Accepted nodes are a path, the next token is one of the vocabulary, and rows had no fault.
  void check(const std::vector<int32_t>& out) const {
    const int32_t *accepted = out.data() + B * N, *next = accepted + B, *status = next + B;
    for (int64_t b = 0; b < B; b++) {
      int32_t above = -1;
      for (int32_t j = 0; j < accepted[b]; j++) {
        int32_t node = out[b * N + j];
        CHECK(node < lengths[b] && parents[b * N + node] == above);
        above = node;
      }
      CHECK(next[b] >= 0 && next[b] < V && status[b] == 0);
    }
  }
};

TEST(rejection_sample_has_the_same_bytes_everywhere) {
  for (int64_t V : {2, 16, 63, 300, 8200})
    for (bool mapped : {false, true}) {
      Problem problem(V < 1000 ? 11 : 4, 7, V, mapped);
      for (bool by_token : {false, true})
        for (bool with_laws : {false, true})
          problem.check(same_bytes(
              [&](ParallelFor pool) { return problem.reject(pool, by_token, with_laws); }));
    }
}

TEST(rejection_sample_takes_64_nodes) {
  Problem problem(2, 64, 200, false);
  problem.check(same_bytes([&](ParallelFor pool) { return problem.reject(pool, false, true); }));
}

TEST(rejection_sample_survives_laws_that_are_no_laws) {
  Problem problem(8, 7, 63, false);
  for (size_t i = 0; i < problem.laws.size(); i++)
    if (i % 5 == 0) problem.laws[i] = i % 2 ? __builtin_nanf("") : kInf;
  std::fill_n(problem.laws.begin(), 63, -kInf);
  for (bool by_token : {false, true})
    problem.check(
        same_bytes([&](ParallelFor pool) { return problem.reject(pool, by_token, true); }));
}

TEST(typical_sample_has_the_same_bytes_everywhere) {
  for (int64_t V : {2, 63, 8200}) {
    Problem problem(5, 7, V, false);
    problem.check(same_bytes([&](ParallelFor pool) { return problem.typical(pool); }));
  }
}

TEST(draw_candidates_has_the_same_bytes_everywhere) {
  for (int64_t V : {1, 5, 63, 8200})
    for (bool mapped : {false, true}) {
      Problem problem(V < 1000 ? 5 : 2, 1, V, mapped);
      same_bytes([&](ParallelFor pool) { return problem.draw(pool, 3); });
    }
}

}  // namespace
