#include "cuda/elements.cuh"
#include "cuda/rms.cuh"

namespace specfast::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 4096;  // floats of a row in shared memory at a time

// h = x (+ residual), the same floats whenever it is read.
template <class T>
struct HiddenRow {
  const T *x, *residual;
  int64_t D;

  __device__ __forceinline__ Elements<T> load(int64_t d) const {
    Elements<T> h = load_elements(x + d, D - d);
    if (!residual) return h;
    Elements<T> r = load_elements(residual + d, D - d);
#pragma unroll
    for (int i = 0; i < Elements<T>::kCount; i++) h.v[i] = h.v[i] + r.v[i];
    return h;
  }
};

__device__ __forceinline__ void store_tile(float4* tile, const float* v, int count) {
#pragma unroll
  for (int i = 0; i < count; i += 4) tile[i / 4] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}

// Of the first sixteen threads: each lane's sum of the row's squares.
template <class T>
__device__ __forceinline__ float sum_of_squares(const HiddenRow<T>& row) {
  constexpr int kCount = Elements<T>::kCount;
  SPECFAST_SHARED(float4[kTile / 4], tile);
  const float* values = reinterpret_cast<const float*>(tile);
  const int thread = (int)threadIdx.x;
  float sum = 0.0f;
  for (int64_t begin = 0; begin < row.D; begin += kTile) {
    int n = row.D - begin < kTile ? (int)(row.D - begin) : kTile;
    for (int i = thread * kCount; i < n; i += kThreads * kCount)
      store_tile(tile + i / 4, row.load(begin + i).v, kCount);
    __syncthreads();
    if (thread < kRmsLanes)
      for (int i = thread; i < n; i += kRmsLanes) sum = fma(values[i], values[i], sum);
    __syncthreads();
  }
  return sum;
}

// A block a row. Nothing is written before all of the row is read, so out and sum_out may be x or
// residual.
template <class T>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormParams p) {
  constexpr int kCount = Elements<T>::kCount;
  SPECFAST_SHARED(float, inverse);
  for (int64_t i = blockIdx.x; i < p.M; i += gridDim.x) {
    const T* residual = reinterpret_cast<const T*>(p.residual);
    HiddenRow<T> row{reinterpret_cast<const T*>(p.x) + i * p.x_stride,
                     residual ? residual + i * p.D : nullptr, p.D};
    float sum = sum_of_squares(row);
    if (threadIdx.x < kRmsLanes) {
      float scale = inverse_rms(sum, p.D, p.eps, 0xffffu);
      if (threadIdx.x == 0) inverse = scale;
    }
    __syncthreads();
    float scale = inverse;
    T* out = reinterpret_cast<T*>(p.out) + i * p.D;
    T* sum_out = reinterpret_cast<T*>(p.sum_out);
    for (int64_t d = threadIdx.x * kCount; d < p.D; d += kThreads * kCount) {
      Elements<T> h = row.load(d);
      if (sum_out) store_elements(sum_out + i * p.D + d, h, p.D - d);
#pragma unroll
      for (int part = 0; part < kCount; part += 4) {
        Elements<float> w = load_elements(p.weight + d + part, p.D - d - part);
#pragma unroll
        for (int j = 0; j < 4; j++) h.v[part + j] = h.v[part + j] * scale * w.v[j];
      }
      store_elements(out + d, h, p.D - d);
    }
  }
}

template <class T>
void launch_rms_norm(const RmsNormParams& p, Stream stream) {
  SPECFAST_LAUNCH(rms_norm_kernel<T>, grid_rows(p.M), kThreads, 0, stream, p);
}

}  // namespace

void rms_norm(const RmsNormParams& p, Stream stream) {
  if (p.dtype == DType::bf16)
    launch_rms_norm<Bf16>(p, stream);
  else
    launch_rms_norm<float>(p, stream);
}

}  // namespace specfast::cuda
