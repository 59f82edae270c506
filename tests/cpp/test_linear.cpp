#include "everywhere.h"

namespace {

using namespace everywhere;
using specfast::DType;
using specfast::kPanel;
using specfast::LinearParams;

uint16_t to_bf16(float f) {  // truncated: any bf16 weight will do
  uint32_t u;
  memcpy(&u, &f, 4);
  return (uint16_t)(u >> 16);
}
float widen(uint16_t b) {
  uint32_t u = (uint32_t)b << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

struct Problem {
  int64_t M, N, K;
  std::vector<float> x, weight, bias, residual, packed;
  std::vector<uint16_t> packed_bf16;

  Problem(int64_t m, int64_t n, int64_t k)
      : M(m), N(n), K(k), x(normal(m * k, 1)), weight(normal(n * k, 2)), bias(normal(n, 3)) {
    residual = normal(m * n, 4);
    for (float& w : weight) w = widen(to_bf16(w));
    int64_t panels = (N + kPanel - 1) / kPanel;
    packed.assign(panels * K * kPanel, 0.0f);
    packed_bf16.assign(panels * K * kPanel, 0);
    for (int64_t column = 0; column < N; column++) {
      int64_t in_panel = column % kPanel, half = kPanel / 2;
      int64_t interleaved = in_panel % half * 2 + in_panel / half;
      for (int64_t i = 0; i < K; i++) {
        float* row = &packed[(column / kPanel * K + i) * kPanel];
        row[in_panel] = weight[column * K + i];
        packed_bf16[row - packed.data() + interleaved] = to_bf16(weight[column * K + i]);
      }
    }
  }

  std::vector<float> run(ParallelFor pool, DType dtype, int64_t first, int64_t rows) const {
    std::vector<float> out(rows * N);
    LinearParams p{};
    p.x = x.data() + first * K;
    p.weight = dtype == DType::f32 ? (const void*)packed.data() : packed_bf16.data();
    p.bias = bias.data();
    p.residual = residual.data() + first * N;
    p.out = out.data();
    p.M = rows, p.N = N, p.K = K;
    p.x_stride = K, p.residual_stride = p.out_stride = N;
    p.weight_dtype = dtype;
    specfast::cpu::linear(p, pool);
    return out;
  }

  // The specification: fma over k in order, then the bias, then the residual.
  std::vector<float> expected() const {
    std::vector<float> out(M * N);
    for (int64_t m = 0; m < M; m++)
      for (int64_t n = 0; n < N; n++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < K; k++) sum = std::fma(weight[n * K + k], x[m * K + k], sum);
        sum += bias[n];
        out[m * N + n] = sum + residual[m * N + n];
      }
    return out;
  }
};

TEST(linear_gives_the_specified_bits) {
  constexpr int64_t shapes[][3] = {{1, 1, 1}, {2, 15, 17}, {5, 33, 31}, {13, 96, 64}, {97, 40, 19}};
  for (auto [M, N, K] : shapes) {
    Problem problem(M, N, K);
    for (DType dtype : {DType::f32, DType::bf16}) {
      auto got =
          same_bytes([&](ParallelFor pool) { return problem.run(pool, dtype, 0, problem.M); });
      CHECK_BYTES(got, problem.expected());
    }
  }
}

TEST(linear_rows_do_not_depend_on_their_neighbours) {
  Problem problem(29, 47, 33);
  auto whole = problem.run(specfast::serial_for, DType::bf16, 0, problem.M);
  for (int64_t row = 0; row < problem.M; row++) {
    auto alone = problem.run(specfast::serial_for, DType::bf16, row, 1);
    std::vector<float> same(whole.begin() + row * problem.N, whole.begin() + (row + 1) * problem.N);
    CHECK_BYTES(alone, same);
  }
}

}  // namespace
