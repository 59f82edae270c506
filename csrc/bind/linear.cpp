#include "door.h"

namespace specfast::bind {
namespace {

// Elements of out are written while rows of x are still read.
void check_apart(const LinearParams& p) {
  const float* x_end = p.x + (p.M - 1) * p.x_stride + p.K;
  const float* out_end = p.out + (p.M - 1) * p.out_stride + p.N;
  STD_TORCH_CHECK(p.M == 0 || p.out >= x_end || p.x >= out_end, "out: must not overlap x");
}

}  // namespace

void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& residual, Tensor out) {
  Door door;
  LinearParams p{};
  p.x = door.float_rows(x, "x", {-1, -1});
  p.M = x.size(0), p.K = x.size(1), p.x_stride = row_stride(x);
  p.out = door.float_rows_out(out, "out", {p.M, -1});
  p.N = out.size(1), p.out_stride = row_stride(out);
  door.check_device(weight, "weight");
  p.weight_dtype = storage_dtype(weight, "weight");
  check_shape(weight, "weight", {(p.N + kPanel - 1) / kPanel, p.K, kPanel});
  check_contiguous(weight, "weight");
  p.weight = weight.const_data_ptr();
  p.bias = door.float_in(bias, "bias", {p.N});
  if (residual) {
    p.residual = door.float_rows(*residual, "residual", {p.M, p.N});
    p.residual_stride = row_stride(*residual);
  }
  check_apart(p);
  door.run(p, "linear", cpu::linear);
}

SPECFAST_REGISTER_CPU(linear)

}  // namespace specfast::bind
