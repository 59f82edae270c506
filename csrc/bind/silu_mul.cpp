#include "checks.h"
#include "kernels.h"

namespace specfast::bind {

void silu_mul(const Tensor& gate_up, Tensor out) {
  SiluMulParams p{};
  p.out = f32_out(out, "out", {-1, -1});
  p.M = out.size(0), p.F = out.size(1);
  p.gate_up = f32_in(gate_up, "gate_up", {p.M, 2 * p.F});
  cpu::silu_mul(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) { m.impl("silu_mul", TORCH_BOX(&silu_mul)); }

}  // namespace specfast::bind
