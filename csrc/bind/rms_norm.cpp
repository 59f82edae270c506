#include "checks.h"
#include "kernels.h"

namespace specfast::bind {

void rms_norm(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
              double eps, Tensor out, const std::optional<Tensor>& sum_out) {
  RmsNormParams p{};
  p.x = f32_rows(x, "x", {-1, -1});
  p.M = x.size(0), p.D = x.size(1), p.x_stride = row_stride(x);
  p.residual = f32_in(residual, "residual", {p.M, p.D});
  p.weight = f32_in(weight, "weight", {p.D});
  p.out = f32_out(out, "out", {p.M, p.D});
  p.sum_out = f32_out(sum_out, "sum_out", {p.M, p.D});
  p.eps = (float)eps;
  cpu::rms_norm(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) { m.impl("rms_norm", TORCH_BOX(&rms_norm)); }

}  // namespace specfast::bind
