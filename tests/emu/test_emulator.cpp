// The emulator itself.
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"
#include "device.h"

namespace {

using namespace device;

__global__ void sum_kernel(const float* x, float* out, int n) {
  SPECFAST_SHARED(float[32], sums);
  SPECFAST_DYNAMIC_SHARED(float, row);
  for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) row[i] = x[blockIdx.x * n + i];
  __syncthreads();
  float sum = 0;
  for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) sum += row[n - 1 - i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(specfast::cuda::kFullMask, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (unsigned i = 1; i < blockDim.x / 32; i++) sum += sums[i];
  out[blockIdx.x] = sum;
}

TEST(a_block_sums_a_row) {
  constexpr int kRows = 5, kColumns = 1000;
  std::vector<float> x(kRows * kColumns);
  for (size_t i = 0; i < x.size(); i++) x[i] = (float)(i % 7);
  auto got = everywhere([&] {
    Device<float> in(x), out(kRows);
    SPECFAST_LAUNCH(sum_kernel, kRows, 128, kColumns * sizeof(float), nullptr, in.data(),
                    out.data(), kColumns);
    return out.host();
  });
  for (int row = 0; row < kRows; row++) {
    float sum = 0;
    for (int i = 0; i < kColumns; i++) sum += x[(size_t)(row * kColumns + i)];
    CHECK_EQ(got[(size_t)row], sum);
  }
}

}  // namespace
