#include "core/bf16.h"
#include "device.h"

namespace {

using namespace device;
using specfast::Bf16;
using specfast::DType;
using specfast::RmsNormParams;

template <class T>
struct Problem {
  int64_t M, D, x_stride;
  std::vector<T> x, residual;
  std::vector<float> weight;
};

Problem<float> problem(int64_t M, int64_t D, int64_t x_stride) {
  return {M,
          D,
          x_stride,
          normal((size_t)(M * x_stride), 1),
          normal((size_t)(M * D), 2),
          normal((size_t)D, 3)};
}

Problem<Bf16> narrowed(const Problem<float>& p) {
  return {p.M,
          p.D,
          p.x_stride,
          map<Bf16>(p.x, specfast::narrow<Bf16>),
          map<Bf16>(p.residual, specfast::narrow<Bf16>),
          p.weight};
}

Problem<float> widened(const Problem<Bf16>& p) {
  auto widen = [](Bf16 x) { return specfast::widen(x); };
  return {p.M, p.D, p.x_stride, map<float>(p.x, widen), map<float>(p.residual, widen), p.weight};
}

// The op over buffers that hold the problem; the outputs are the first two.
template <class T, class Op>
void run(const Problem<T>& of, const Op& op, T* out, T* sum_out, const T* x, const T* residual,
         const float* weight) {
  RmsNormParams p{};
  p.x = reinterpret_cast<const float*>(x);
  p.residual = reinterpret_cast<const float*>(residual);
  p.out = reinterpret_cast<float*>(out);
  p.sum_out = reinterpret_cast<float*>(sum_out);
  p.weight = weight, p.M = of.M, p.D = of.D, p.x_stride = of.x_stride, p.eps = 1e-5f;
  p.dtype = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  op(p);
}

// The normed rows, then the sums where there is a residual.
template <class T>
std::vector<T> run_once(const Problem<T>& of, bool with_residual) {
  size_t n = (size_t)(of.M * of.D);
  Device<T> x(of.x), residual(of.residual), out(n), sums(with_residual ? n : 0);
  Device<float> weight(of.weight);
  run(
      of, [](auto& p) { specfast::cuda::rms_norm(p, nullptr); }, out.data(),
      with_residual ? sums.data() : nullptr, x.data(), with_residual ? residual.data() : nullptr,
      weight.data());
  std::vector<T> both = out.host(), second = sums.host();
  both.insert(both.end(), second.begin(), second.end());
  return both;
}

template <class T>
std::vector<T> on_device(const Problem<T>& of, bool with_residual) {
  return everywhere([&] { return run_once(of, with_residual); });
}

std::vector<float> on_cpu(const Problem<float>& of, bool with_residual) {
  size_t n = (size_t)(of.M * of.D);
  std::vector<float> both(with_residual ? 2 * n : n);
  run(
      of, [](auto& p) { specfast::cpu::rms_norm(p, specfast::serial_for); }, both.data(),
      with_residual ? both.data() + n : nullptr, of.x.data(),
      with_residual ? of.residual.data() : nullptr, of.weight.data());
  return both;
}

// Widths around the CPU's lanes, one access and the kernel's tile; strides that no access fits.
TEST(rms_norm_gives_the_bytes_of_the_cpu) {
  for (int64_t D : {1, 7, 16, 33, 576, 4096, 4097, 9001})
    for (bool with_residual : {false, true})
      for (int64_t stride : {D, D + 3}) {
        auto p = problem(3, D, stride);
        auto got = on_device(p, with_residual), expected = on_cpu(p, with_residual);
        CHECK_BYTES(got, expected);
      }
}

TEST(rms_norm_rounds_bf16_once) {
  for (int64_t D : {1, 7, 16, 33, 576, 4096, 9001})
    for (bool with_residual : {false, true}) {
      auto p = narrowed(problem(2, D, D + 8));
      auto got = on_device(p, with_residual);
      auto expected = map<Bf16>(on_cpu(widened(p), with_residual), specfast::narrow<Bf16>);
      CHECK_BYTES(got, expected);
    }
}

TEST(rms_norm_of_no_rows_and_of_more_than_a_grid) {
  CHECK(on_device(problem(0, 16, 16), true).empty());
  auto p = problem(8193, 2, 2);
  auto got = run_once(p, false), expected = on_cpu(p, false);
  CHECK_BYTES(got, expected);
}

TEST(rms_norm_may_write_over_its_inputs) {
  for (int64_t D : {33, 5000}) {
    auto p = problem(2, D, D);
    auto got = everywhere([&] {
      Device<float> x(p.x), residual(p.residual), weight(p.weight);
      run(
          p, [](auto& q) { specfast::cuda::rms_norm(q, nullptr); }, x.data(), residual.data(),
          x.data(), residual.data(), weight.data());
      std::vector<float> both = x.host(), sums = residual.host();
      both.insert(both.end(), sums.begin(), sums.end());
      return both;
    });
    auto expected = on_cpu(p, true);
    CHECK_BYTES(got, expected);
  }
}

}  // namespace
