#include "cpu/rms.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {

void rms_norm(const RmsNormParams& p, ParallelFor parallel_for) {
  parallel_for(p.M, 32, [&](int64_t first, int64_t last) {
    FloatEnv env;
    for (int64_t row = first; row < last; row++) {
      const float* x = p.x + row * p.x_stride;
      const float* residual = p.residual ? p.residual + row * p.D : nullptr;
      float* out = p.out + row * p.D;
      F32x16 squares = broadcast(0.0f);
      for (int64_t d = 0; d < p.D; d += 16) {
        int n = p.D - d < 16 ? (int)(p.D - d) : 16;
        F32x16 h = load_first(x + d, n);
        if (residual) h = h + load_first(residual + d, n);
        squares = fma(h, h, squares);
        store_first(out + d, h, n);  // out may be x: it holds h until it is scaled
        if (p.sum_out) store_first(p.sum_out + row * p.D + d, h, n);
      }
      F32x16 inverse = inverse_rms(squares, p.D, p.eps);
      for (int64_t d = 0; d < p.D; d += 16) {
        int n = p.D - d < 16 ? (int)(p.D - d) : 16;
        store_first(out + d, load_first(out + d, n) * inverse * load_first(p.weight + d, n), n);
      }
    }
  });
}

}  // namespace specfast::cpu::SPECFAST_TIER
