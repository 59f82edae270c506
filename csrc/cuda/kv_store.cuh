// Eight elements at a time, 16 bytes of bf16 and twice 16 of fp32, from activations into the cache.
#pragma once
#include "core/paged_kv.h"
#include "cuda/elements.cuh"
#include "params.h"

namespace specfast::cuda {

constexpr int kUnit = 8;  // head dims are multiples of it

struct alignas(16) Unit {
  float v[kUnit];
};

template <class T>
__device__ __forceinline__ Unit load_unit(const T* p) {
  Unit unit;
#pragma unroll
  for (int d = 0; d < kUnit; d += Elements<T>::kCount) {
    Elements<T> e = load_elements(p + d, kUnit - d);
#pragma unroll
    for (int i = 0; i < Elements<T>::kCount; i++) unit.v[d + i] = e.v[i];
  }
  return unit;
}

template <class T>
__device__ __forceinline__ void store_unit(T* p, const Unit& unit) {
#pragma unroll
  for (int d = 0; d < kUnit; d += Elements<T>::kCount) {
    Elements<T> e;
#pragma unroll
    for (int i = 0; i < Elements<T>::kCount; i++) e.v[i] = unit.v[d + i];
    store_elements(p + d, e, kUnit - d);
  }
}

// Stores 0 for what is not finite; and if anything was not, says so in the row's status.
template <class Element>
__device__ __forceinline__ void store_finite(Element* out, Unit unit, int32_t* status) {
  bool all_finite = true;
#pragma unroll
  for (float& x : unit.v) {
    bool finite = (bitcast_i32(x) & 0x7fffffff) < kNonFiniteBits<Element>;
    x = finite ? x : 0.0f;
    all_finite &= finite;
  }
  store_unit(out, unit);
  if (!all_finite) atomicOr(status, (int32_t)kRowNonFiniteKv);
}

// Nobody has looked at a slot in device memory: outside the cache it stores nothing.
__device__ __forceinline__ bool is_slot(const KvLayer& cache, int64_t slot) {
  return slot >= 0 && slot < cache.num_blocks * cache.block_size;
}

// The cache's elements from a slot's K (plane 0) or V (plane 1) on.
template <class Element>
__device__ __forceinline__ Element* slot_data(const KvLayer& cache, int64_t plane, int64_t slot) {
  int64_t num_slots = cache.num_blocks * cache.block_size;
  return static_cast<Element*>(cache.data) +
         kv_offset(num_slots, cache.num_kv_heads * cache.head_dim, plane, slot);
}

}  // namespace specfast::cuda
