// The scale of an RMS norm, the same operations for a hidden row and for one head of q or k, and as
// on the CPU.
#pragma once
#include "cuda/launch.cuh"

namespace specfast::cuda {

constexpr int kRmsLanes = 16;  // lane i sums the squares of elements i, i + 16, ...

// squares: each lane's sum. For the sixteen lanes of mask, half a warp.
__device__ __forceinline__ float inverse_rms(float squares, int64_t n, float eps, unsigned mask) {
#pragma unroll
  for (int half = kRmsLanes / 2; half; half /= 2) squares += __shfl_xor_sync(mask, squares, half);
  return 1.0f / sqrtf(squares / (float)n + eps);
}

}  // namespace specfast::cuda
