// The softmax of 16 rows over one split, or over the splits folded so far, as DESIGN section 7
// defines it. exp2 is split into integer and fraction before a maximum is subtracted, so m is an
// integer and every rescale an exact power of two.
#pragma once
#include "core/fast_math.h"
#include "cuda/launch.cuh"

namespace specfast::cuda {

constexpr float kNoScore = -__builtin_inff();

// What a total and the split after it are multiplied by when they are added.
struct FoldScales {
  float total, split;
};
__device__ __forceinline__ FoldScales fold_scales(float& total_m, float split_m) {
  float m = max(split_m, total_m);
  FoldScales scales{pow2i(total_m - m), pow2i(split_m - m)};
  total_m = m;
  return scales;
}

// One output; of a row that saw nothing 0. -0 counts as 0: whether columns of weight 0 were added
// must not show.
__device__ __forceinline__ float normalised(float o, float l) {
  return l == 0.0f ? 0.0f : (o + 0.0f) / l;
}

// As mma holds a 16-row matrix: elements 0 and 1 belong to row lane / 4, elements 2 and 3 to row
// lane / 4 + 8.
template <int kDims>
struct State {
  float o[kDims / 8][4];  // sum of w v
  float l[4];             // sum of w, in each column alike
  float m[2];             // a row's greatest exponent so far

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < kDims / 8; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) o[i][c] = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; c++) l[c] = 0.0f;
    m[0] = m[1] = kNoScore;
  }

  __device__ __forceinline__ void raise_max(const float (&top)[2]) {
    float scale[2] = {pow2i(m[0] - top[0]), pow2i(m[1] - top[1])};
#pragma unroll
    for (int i = 0; i < kDims / 8; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) o[i][c] *= scale[c / 2];
#pragma unroll
    for (int c = 0; c < 4; c++) l[c] *= scale[c / 2];
    m[0] = top[0], m[1] = top[1];
  }
};

}  // namespace specfast::cuda
