#include "device.h"

namespace {

using device::Device;
using device::everywhere;
using specfast::AcceptPathParams;

using Ints = std::vector<int32_t>;

struct Problem {
  int64_t B, N;
  Ints tokens, row_status, row_base, drafts, parents, lengths;

  // Few different tokens, so that paths are long and siblings often the same.
  Problem(int64_t B, int64_t N, std::mt19937& random) : B(B), N(N) {
    auto any = [&](int32_t first, int32_t last) {
      return first + (int32_t)(random() % (unsigned)(last - first + 1));
    };
    int32_t alphabet = any(0, 2);
    bool is_deep = any(0, 1);
    for (int64_t b = 0; b < B; b++) {
      lengths.push_back(any(0, 3) ? (int32_t)N : any(-2, (int32_t)N));
      row_base.push_back(any(0, 7) ? (int32_t)tokens.size() : any(-9, -1));
      for (int32_t i = 0; i < N; i++) {
        drafts.push_back(any(0, 9) ? any(0, alphabet) : -1);
        parents.push_back(is_deep ? std::max(-1, i - any(1, 2)) : any(-1, i - 1));
      }
      for (int32_t i = 0; i <= lengths.back() || i == 0; i++) {
        tokens.push_back(any(0, 30) ? any(0, alphabet) : -1);
        row_status.push_back(any(0, 3) ? 0 : 1 << any(0, 2));
      }
    }
  }

  template <class Run>
  Ints run(const Run& run_op, const int32_t* tokens, const int32_t* row_status,
           const int32_t* row_base, const int32_t* drafts, const int32_t* parents,
           const int32_t* lengths) const {
    Device<int32_t> path((size_t)(B * N)), accepted((size_t)B), next((size_t)B), status((size_t)B);
    AcceptPathParams p{};
    p.B = B, p.N = N, p.num_rows = (int64_t)this->tokens.size();
    p.tokens = tokens, p.row_status = row_status, p.row_base = row_base;
    p.draft_tokens = drafts, p.parents = parents, p.lengths = lengths;
    p.path = path.data(), p.num_accepted = accepted.data();
    p.next_tokens = next.data(), p.status = status.data();
    run_op(p);
    Ints all;
    for (const Device<int32_t>* out : {&path, &accepted, &next, &status})
      for (int32_t x : out->host()) all.push_back(x);
    return all;
  }
  Ints on_device() const {
    return everywhere([&] {
      Device<int32_t> d_tokens(tokens), d_status(row_status), d_base(row_base), d_drafts(drafts),
          d_parents(parents), d_lengths(lengths);
      return run([](const AcceptPathParams& p) { specfast::cuda::accept_path(p, nullptr); },
                 d_tokens.data(), d_status.data(), d_base.data(), d_drafts.data(), d_parents.data(),
                 d_lengths.data());
    });
  }
  Ints on_cpu() const {
    return run(
        [](const AcceptPathParams& p) { specfast::cpu::accept_path(p, specfast::serial_for); },
        tokens.data(), row_status.data(), row_base.data(), drafts.data(), parents.data(),
        lengths.data());
  }
};

TEST(accept_path_gives_the_paths_of_the_cpu) {
  std::mt19937 random(1);
  for (int64_t N : {0, 1, 2, 7, 31, 32, 33, 64, 100})
    for (int64_t B : {0, 1, 4, 5, 9})
      for (int repeat = 0; repeat < 8; repeat++) {
        Problem problem(B, N, random);
        auto got = problem.on_device(), expected = problem.on_cpu();
        CHECK_BYTES(got, expected);
      }
}

// 70 nodes, the path through all of them.
TEST(accept_path_follows_a_chain_to_its_end) {
  std::mt19937 random(2);
  Problem problem(1, 70, random);
  problem.lengths = {70}, problem.row_base = {0};
  for (int32_t i = 0; i < 70; i++) problem.drafts[i] = i, problem.parents[i] = i - 1;
  problem.tokens = problem.drafts, problem.tokens.push_back(7);
  problem.row_status.assign(71, 0);
  Ints got = problem.on_device();
  CHECK_BYTES(got, problem.on_cpu());
  CHECK_EQ(got[70], 70);
  CHECK_EQ(got[71], 7);
}

// What the CPU op's caller refuses at the door: such a sequence has no rows.
TEST(accept_path_reads_nothing_past_its_arrays) {
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 20; repeat++) {
    Problem problem(5, 12, random);
    Problem padded = problem;
    int32_t num_rows = (int32_t)problem.tokens.size();
    problem.lengths = {13, INT32_MAX, 12, -5, 12};
    problem.row_base = {0, 0, num_rows - 12, num_rows, INT32_MAX};
    padded.lengths = {0, 0, 0, 0, 0};
    padded.row_base = {-1, -1, -1, -1, -1};
    auto got = problem.on_device(), expected = padded.on_cpu();
    CHECK_BYTES(got, expected);
  }
}

// Parents that come after their children, or are nowhere, are nobody's.
TEST(accept_path_survives_any_parents) {
  std::mt19937 random(4);
  for (int repeat = 0; repeat < 100; repeat++) {
    Problem problem(3, 40, random);
    for (int32_t& parent : problem.parents)
      if (random() % 4 == 0)
        parent = (int32_t)random();
      else if (random() % 4 == 0)
        parent = (int32_t)(random() % 40);
    auto got = problem.on_device(), expected = problem.on_cpu();
    CHECK_BYTES(got, expected);
  }
}

}  // namespace
