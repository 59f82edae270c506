#include "core/fast_math.h"
#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void silu_mul(const SiluMulParams& p, ParallelFor parallel_for) {
  parallel_for(p.M, 8, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t row = first; row < last; row++) {
      const float* gate = p.gate_up + row * 2 * p.F;
      const float* up = gate + p.F;
      float* out = p.out + row * p.F;
      for (int64_t f = 0; f < p.F; f += 16) {
        int n = p.F - f < 16 ? (int)(p.F - f) : 16;
        store_first(out + f, silu(load_first(gate + f, n)) * load_first(up + f, n), n);
      }
    }
  });
}

}  // namespace specfast::cpu::SPECFAST_TIER
