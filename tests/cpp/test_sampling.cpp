// sample_rows, rank_candidates and accept_path without torch, so that sanitizers see them: rows end
// where their memory ends.
#include "everywhere.h"

namespace {

using namespace everywhere;
constexpr float kInf = __builtin_inff();

struct Problem {
  int64_t R, V, L = 3;
  std::vector<float> logits, temperature, top_p, min_p;
  std::vector<int64_t> seeds;
  std::vector<int32_t> positions, top_k;

  Problem(int64_t rows, int64_t vocab)
      : R(rows), V(vocab), logits(normal(rows * vocab, 5)), seeds(rows, 9), positions(rows, 4) {
    for (int64_t row = 0; row < R; row++) {
      temperature.push_back(row % 4 ? 0.5f * (float)(row % 4) : 0.0f);
      top_k.push_back(row % 3 ? 0 : (int32_t)(V / 2));
      top_p.push_back(row % 5 ? 1.0f : 0.9f);
      min_p.push_back(row % 7 ? 0.0f : 0.01f);
    }
  }

  // Tokens, statuses, log-probability ids and bits.
  std::vector<int32_t> sample(ParallelFor pool) const {
    std::vector<int32_t> out(2 * R), ids(R * (1 + L));
    std::vector<float> logprobs(ids.size());
    specfast::SampleRowsParams p{};
    p.logits = logits.data(), p.logits_stride = V, p.R = R, p.V = V, p.L = L;
    p.temperature = temperature.data(), p.top_p = top_p.data(), p.min_p = min_p.data();
    p.top_k = top_k.data(), p.positions = positions.data(), p.seeds = seeds.data();
    p.tokens = out.data(), p.status = out.data() + R;
    p.logprob_ids = ids.data(), p.logprobs = logprobs.data();
    specfast::cpu::sample_rows(p, pool);
    return join(out, ids, logprobs);
  }

  std::vector<int32_t> rank(ParallelFor pool, int64_t m, const int32_t* d2t) const {
    std::vector<int32_t> ids(R * m);
    std::vector<float> scores(ids.size());
    specfast::RankCandidatesParams p{};
    p.logits = logits.data(), p.logits_stride = V, p.R = R, p.V = V, p.m = m, p.d2t = d2t;
    p.temperature = temperature.data(), p.positions = positions.data(), p.seeds = seeds.data();
    p.ids = ids.data(), p.scores = scores.data();
    specfast::cpu::rank_candidates(p, pool);
    return join({}, ids, scores);
  }

  static std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b,
                                   const std::vector<float>& c) {
    a.insert(a.end(), b.begin(), b.end());
    size_t n = a.size();
    a.resize(n + c.size());
    memcpy(a.data() + n, c.data(), c.size() * sizeof(float));
    return a;
  }
};

TEST(sample_rows_has_the_same_bytes_everywhere) {
  for (int64_t V : {1, 5, 16, 63, 300, 8192, 8200}) {
    Problem problem(V < 1000 ? 21 : 9, V);
    auto got = same_bytes([&](ParallelFor pool) { return problem.sample(pool); });
    for (int64_t row = 0; row < problem.R; row++)
      CHECK(got[row] >= 0 && got[row] < V && got[problem.R + row] == 0);
  }
}

TEST(sample_rows_says_what_a_row_lacks) {
  Problem problem(5, 100);
  std::fill_n(problem.logits.begin() + 100, 100, -kInf);
  problem.logits[299] = __builtin_nanf("");
  auto got = same_bytes([&](ParallelFor pool) { return problem.sample(pool); });
  std::vector<int32_t> status(got.begin() + 5, got.begin() + 10);
  CHECK_BYTES(status, (std::vector<int32_t>{0, specfast::kRowNoSupport, specfast::kRowNan, 0, 0}));
  CHECK_EQ(got[1], -1);
  CHECK_EQ(got[2], -1);
}

TEST(rank_candidates_has_the_same_bytes_everywhere) {
  for (int64_t V : {1, 5, 63, 8200}) {
    Problem problem(6, V);
    std::vector<int32_t> d2t(V);
    for (int64_t i = 0; i < V; i++) d2t[i] = (int32_t)(5 * (V - i));
    same_bytes([&](ParallelFor pool) { return problem.rank(pool, 7, nullptr); });
    same_bytes([&](ParallelFor pool) { return problem.rank(pool, 7, d2t.data()); });
  }
}

TEST(accept_path_walks_within_its_arrays) {
  std::vector<int32_t> tokens{1, 2, 3, 9, 8, 1}, row_status(6), row_base{0, -1, 4};
  std::vector<int32_t> drafts{1, 3, 3, 7, 7, 7, 8, -1, -1}, parents{-1, 0, 0, -1, 0, 1, -1, -1, -1};
  std::vector<int32_t> lengths{3, 3, 1}, path(9), accepted(3), next(3), status(3);
  tokens[1] = 3;
  specfast::AcceptPathParams p{};
  p.tokens = tokens.data(), p.row_status = row_status.data(), p.row_base = row_base.data();
  p.draft_tokens = drafts.data(), p.parents = parents.data(), p.lengths = lengths.data();
  p.path = path.data(), p.num_accepted = accepted.data(), p.next_tokens = next.data();
  p.status = status.data(), p.B = 3, p.N = 3;
  specfast::cpu::accept_path(p, threads_for<2>);
  CHECK_BYTES(path, (std::vector<int32_t>{0, 1, -1, -1, -1, -1, 0, -1, -1}));
  CHECK_BYTES(accepted, (std::vector<int32_t>{2, 0, 1}));
  CHECK_BYTES(next, (std::vector<int32_t>{3, -1, 1}));
}

}  // namespace
