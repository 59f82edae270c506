#include "core/fast_math.h"
#include "cuda/elements.cuh"

namespace specfast::cuda {
namespace {

constexpr int kThreads = 256;

// Each thread has 16 bytes of a row at a time.
template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulParams p) {
  constexpr int kCount = Elements<T>::kCount;
  for (int64_t row = blockIdx.y; row < p.M; row += gridDim.y) {
    const T* gate = reinterpret_cast<const T*>(p.gate_up) + row * 2 * p.F;
    const T* up = gate + p.F;
    T* out = reinterpret_cast<T*>(p.out) + row * p.F;
    int64_t step = (int64_t)gridDim.x * kThreads * kCount;
    for (int64_t f = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * kCount; f < p.F; f += step) {
      Elements<T> g = load_elements(gate + f, p.F - f), u = load_elements(up + f, p.F - f);
#pragma unroll
      for (int i = 0; i < kCount; i++) g.v[i] = silu(g.v[i]) * u.v[i];
      store_elements(out + f, g, p.F - f);
    }
  }
}

template <class T>
void launch_silu_mul(const SiluMulParams& p, Stream stream) {
  int64_t chunks = ceil_div(p.F, kThreads * Elements<T>::kCount);
  dim3 grid((unsigned)chunks, grid_rows(p.M));
  SPECFAST_LAUNCH(silu_mul_kernel<T>, grid, kThreads, 0, stream, p);
}

}  // namespace

void silu_mul(const SiluMulParams& p, Stream stream) {
  if (p.dtype == DType::bf16)
    launch_silu_mul<Bf16>(p, stream);
  else
    launch_silu_mul<float>(p, stream);
}

}  // namespace specfast::cuda
