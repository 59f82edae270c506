#include "everywhere.h"

namespace {

using namespace everywhere;
using specfast::RmsNormParams;

struct Problem {
  int64_t M, D;
  std::vector<float> x, residual, weight;

  Problem(int64_t m, int64_t d)
      : M(m), D(d), x(normal(m * d, 1)), residual(normal(m * d, 2)), weight(normal(d, 3)) {}

  // The normed rows, then the sums.
  std::vector<float> run(ParallelFor pool, int64_t first, int64_t rows) const {
    std::vector<float> out(2 * rows * D);
    RmsNormParams p{};
    p.x = x.data() + first * D;
    p.residual = residual.data() + first * D;
    p.weight = weight.data();
    p.out = out.data();
    p.sum_out = out.data() + rows * D;
    p.M = rows, p.D = D, p.x_stride = D;
    p.eps = 1e-5f;
    specfast::cpu::rms_norm(p, pool);
    return out;
  }
};

TEST(rms_norm_is_close_to_double) {
  for (int64_t D : {1, 15, 16, 17, 33, 576}) {
    Problem problem(7, D);
    auto got = same_bytes([&](ParallelFor pool) { return problem.run(pool, 0, problem.M); });
    for (int64_t row = 0; row < problem.M; row++) {
      double squares = 0;
      for (int64_t i = row * D; i < (row + 1) * D; i++)
        squares += std::pow((double)problem.x[i] + problem.residual[i], 2);
      double scale = 1 / std::sqrt(squares / (double)D + 1e-5);
      for (int64_t i = row * D; i < (row + 1) * D; i++) {
        double h = (double)problem.x[i] + problem.residual[i];
        CHECK(std::abs(got[i] - h * scale * problem.weight[i - row * D]) < 1e-5);
        CHECK_EQ(got[problem.M * D + i], problem.x[i] + problem.residual[i]);
      }
    }
  }
}

TEST(rms_norm_rows_do_not_depend_on_their_neighbours) {
  Problem problem(9, 49);
  auto whole = problem.run(specfast::serial_for, 0, problem.M);
  for (int64_t row = 0; row < problem.M; row++) {
    auto alone = problem.run(specfast::serial_for, row, 1);
    alone.resize(problem.D);
    std::vector<float> same(whole.begin() + row * problem.D, whole.begin() + (row + 1) * problem.D);
    CHECK_BYTES(alone, same);
  }
}

}  // namespace
