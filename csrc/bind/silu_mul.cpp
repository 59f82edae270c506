#include "door.h"

namespace specfast::bind {

void silu_mul(const Tensor& gate_up, Tensor out) {
  Door door;
  SiluMulParams p{};
  p.dtype = door.activations(gate_up, "gate_up");
  p.out = door.float_out(out, "out", {-1, -1}, p.dtype);
  p.M = out.size(0), p.F = out.size(1);
  p.gate_up = door.float_in(gate_up, "gate_up", {p.M, 2 * p.F}, p.dtype);
  door.run(p, SPECFAST_LAUNCHERS(silu_mul));
}

SPECFAST_REGISTER(silu_mul)

}  // namespace specfast::bind
