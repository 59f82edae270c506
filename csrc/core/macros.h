// How a core header's functions are declared: inlined everywhere, on the host and on the device, so
// that no copy compiled for one instruction set is ever linked into another.
#pragma once

#if defined(__CUDACC__)
#define SPECFAST_HD __host__ __device__ __forceinline__
#else
#define SPECFAST_HD inline __attribute__((always_inline))
#endif
