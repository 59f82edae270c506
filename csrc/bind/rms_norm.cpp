#include "door.h"

namespace specfast::bind {

void rms_norm(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
              double eps, Tensor out, const std::optional<Tensor>& sum_out) {
  Door door;
  RmsNormParams p{};
  p.dtype = door.activations(x, "x");
  p.x = door.float_rows(x, "x", {-1, -1}, p.dtype);
  p.M = x.size(0), p.D = x.size(1), p.x_stride = row_stride(x);
  p.residual = door.float_in(residual, "residual", {p.M, p.D}, p.dtype);
  p.weight = door.float_in(weight, "weight", {p.D});
  p.out = door.float_out(out, "out", {p.M, p.D}, p.dtype);
  p.sum_out = door.float_out(sum_out, "sum_out", {p.M, p.D}, p.dtype);
  p.eps = (float)eps;
  door.run(p, SPECFAST_LAUNCHERS(rms_norm));
}

SPECFAST_REGISTER(rms_norm)

}  // namespace specfast::bind
