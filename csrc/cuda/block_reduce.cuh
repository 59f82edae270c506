// What the threads of a block find together. All of them call.
#pragma once
#include "cuda/vocab.cuh"

namespace specfast::cuda {

constexpr int kMaxWarps = 32;
using Wide = unsigned long long;  // as 64-bit atomics take it

template <class T, class Fold>
__device__ T block_fold(T value, Fold fold) {
  SPECFAST_SHARED(T[kMaxWarps], of_warp);
  for (int step = 16; step > 0; step /= 2)
    value = fold(value, __shfl_xor_sync(kFullMask, value, step));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
  for (int warp = 1; warp < (int)blockDim.x / 32; warp++) value = fold(value, of_warp[warp]);
  __syncthreads();
  return value;
}

__device__ inline Rank block_best(Rank r) { return block_fold(r, best_of); }
__device__ inline Wide block_sum(Wide n) {
  return block_fold(n, [](Wide a, Wide b) { return a + b; });
}

__device__ inline float block_max(float x) {
  return block_fold(x, [](float a, float b) { return max(a, b); });
}
__device__ inline float block_min(float x) {
  return block_fold(x, [](float a, float b) { return min(a, b); });
}

// The sum of the threads before this one. The caller's next barrier must come before the next call.
__device__ inline Wide sum_before(Wide own) {
  SPECFAST_SHARED(Wide[kMaxWarps], of_warp);
  Wide sum = own;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    Wide before = __shfl_up_sync(kFullMask, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; i++) sum += of_warp[i];
  return sum - own;
}

}  // namespace specfast::cuda
