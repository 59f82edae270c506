// Launches and shared memory, the one place where nvcc and the emulation (g++, -Itests/emu) differ.
//
//   SPECFAST_SHARED(float[32], sums);     float sums[32], one a block
//   SPECFAST_DYNAMIC_SHARED(float, row);  float* row: what the launch asks for, aligned to 16 bytes
//   SPECFAST_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...);
//
// A kernel with a comma in its name goes in parentheses. An empty grid launches nothing.
#pragma once
#include "kernels.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#define SPECFAST_SHARED(type, name) __shared__ specfast::cuda::Same<type> name
#define SPECFAST_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char specfast_dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(specfast_dynamic_shared)
#else
#include "cuda_emu.h"

#define SPECFAST_SHARED(type, name)       \
  static const char name##_declaration{}; \
  auto& name = emu::shared_object<specfast::cuda::Same<type>>(&name##_declaration)
#define SPECFAST_DYNAMIC_SHARED(type, name) type* name = emu::dynamic_shared<type>()
#endif
#define SPECFAST_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  specfast::cuda::launch(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

namespace specfast::cuda {

constexpr unsigned kFullMask = 0xffffffff;

template <class T>
using Same = T;  // lets an array type stand before the name

// How many blocks stride over n rows: grid.y and grid.z end at 65535.
inline unsigned grid_rows(int64_t n) { return (unsigned)(n < 8192 ? n : 8192); }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Stream stream, const Arguments&... arguments) {
  if (!grid.x || !grid.y || !grid.z) return;
#if defined(__CUDACC__)
  auto check = [name](cudaError_t error) {
    if (error != cudaSuccess) launch_failed(name, error);
  };
  constexpr size_t kWithoutAsking = 48 << 10;
  if (shared_bytes > kWithoutAsking)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)shared_bytes));
  kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(arguments...);
  check(cudaGetLastError());
#else
  (void)stream;
  emu::launch(name, kernel, grid, block, shared_bytes, arguments...);
#endif
}

}  // namespace specfast::cuda
