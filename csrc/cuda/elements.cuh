// Up to 16 bytes of a row as floats: 4 of fp32, 8 of bf16. One access where the address is aligned
// and the row does not end within it, else one an element, so any width and any offset will do.
#pragma once
#include "core/bf16.h"
#include "cuda/launch.cuh"

namespace specfast::cuda {

template <class T>
struct Elements {
  static constexpr int kCount = 16 / sizeof(T);
  float v[kCount];
};

template <class T>
__device__ __forceinline__ bool is_whole(const T* p, int64_t n) {
  return n >= Elements<T>::kCount && reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// The first n; 0 for those beyond, which are not read.
template <class T>
__device__ __forceinline__ Elements<T> load_elements(const T* p, int64_t n) {
  Elements<T> e;
  T raw[Elements<T>::kCount];
  if (is_whole(p, n)) {
    uint4 bits = *reinterpret_cast<const uint4*>(p);
    memcpy(raw, &bits, 16);
#pragma unroll
    for (int i = 0; i < Elements<T>::kCount; i++) e.v[i] = widen(raw[i]);
  } else {
#pragma unroll
    for (int i = 0; i < Elements<T>::kCount; i++) e.v[i] = i < n ? widen(p[i]) : 0.0f;
  }
  return e;
}

template <class T>
__device__ __forceinline__ void store_elements(T* p, const Elements<T>& e, int64_t n) {
  T raw[Elements<T>::kCount];
#pragma unroll
  for (int i = 0; i < Elements<T>::kCount; i++) raw[i] = narrow<T>(e.v[i]);
  if (is_whole(p, n)) {
    uint4 bits;
    memcpy(&bits, raw, 16);
    *reinterpret_cast<uint4*>(p) = bits;
  } else {
#pragma unroll
    for (int i = 0; i < Elements<T>::kCount; i++)
      if (i < n) p[i] = raw[i];
  }
}

}  // namespace specfast::cuda
