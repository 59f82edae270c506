// CUDA's device language on the CPU: a kernel's source, compiled by g++ with this header, runs
// unchanged, each of its threads a fiber (block.h). What is here behaves as the CUDA programming
// guide says; what it leaves undefined aborts, naming kernel, block and thread. What a kernel must
// not use (cooperative groups, textures, plain __shared__, lockstep of a warp) is absent.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "block.h"
#include "tensor_core.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using emu::dim3;
constexpr int warpSize = 32;
#define threadIdx (emu::current->index)
#define blockIdx (emu::current->block->index)
#define blockDim (emu::current->block->launch->block)
#define gridDim (emu::current->block->launch->grid)

// --- vectors, aligned as CUDA's ---
#define EMU_VECTOR(T, name, bytes)                           \
  struct alignas(bytes / 2) name##2 { T x, y; };             \
  struct alignas(bytes) name##4 { T x, y, z, w; };           \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(int, int, 16)
EMU_VECTOR(unsigned, uint, 16)
EMU_VECTOR(float, float, 16)
#undef EMU_VECTOR

// --- barriers ---
inline void __syncthreads(EMU_SITE("__syncthreads")) { emu::current->block->barrier(site, false); }
inline int __syncthreads_count(int predicate, EMU_SITE("__syncthreads_count")) {
  return emu::current->block->barrier(site, predicate != 0);
}
inline int __syncthreads_or(int predicate, EMU_SITE("__syncthreads_or")) {
  return emu::current->block->barrier(site, predicate != 0) != 0;
}
inline int __syncthreads_and(int predicate, EMU_SITE("__syncthreads_and")) {
  return emu::current->block->barrier(site, predicate == 0) == 0;
}
inline void __syncwarp(uint32_t mask = 0xffffffff, EMU_SITE("__syncwarp")) {
  struct Nothing {};
  emu::collective<Nothing>(site, mask, Nothing(), [](const auto&) {});
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __threadfence(); }

// --- warp collectives ---
namespace emu {

template <class T>
struct Shuffled {
  T value;
  int source;
};

// Each lane gets the value of lane `source`, which must be in the mask.
template <class T>
T shuffle(Site site, uint32_t mask, T value, int source) {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "as CUDA's overloads");
  return collective<T>(site, mask, Shuffled<T>{value, source}, [site](const auto& lanes) {
    lanes.each([&](int lane) {
      int source = lanes.in(lane).source;
      if (!lanes.has(source))
        fail("%s: lane %d reads lane %d, mask %#x", site.op, lane, source, lanes.mask);
      lanes.out(lane) = lanes.in(source).value;
    });
  });
}

// All get the fold of all values, lowest lane first.
template <class T, class Fold>
T reduce(Site site, uint32_t mask, T value, Fold fold) {
  return collective<T>(site, mask, value, [fold](const auto& lanes) {
    int first = __builtin_ctz(lanes.mask);
    T total = lanes.in(first);
    lanes.each([&](int lane) {
      if (lane > first) total = fold(total, lanes.in(lane));
    });
    lanes.each([&](int lane) { lanes.out(lane) = total; });
  });
}

}  // namespace emu

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, EMU_SITE("__shfl_sync")) {
  int base = emu::current->lane & ~(width - 1);
  return emu::shuffle(site, mask, value, base | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, EMU_SITE("__shfl_xor_sync")) {
  int lane = emu::current->lane, source = lane ^ bits;
  return emu::shuffle(site, mask, value, source < (lane & ~(width - 1)) + width ? source : lane);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                 EMU_SITE("__shfl_up_sync")) {
  int lane = emu::current->lane, source = lane - (int)delta;
  return emu::shuffle(site, mask, value, source >= (lane & ~(width - 1)) ? source : lane);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                   EMU_SITE("__shfl_down_sync")) {
  int lane = emu::current->lane, source = lane + (int)delta;
  return emu::shuffle(site, mask, value, source < (lane & ~(width - 1)) + width ? source : lane);
}

inline unsigned __ballot_sync(uint32_t mask, int predicate, EMU_SITE("__ballot_sync")) {
  uint32_t bit = predicate ? 1u << emu::current->lane : 0;
  return emu::reduce(site, mask, bit, [](uint32_t a, uint32_t b) { return a | b; });
}
inline int __any_sync(uint32_t mask, int predicate, EMU_SITE("__any_sync")) {
  return emu::reduce(site, mask, predicate != 0, [](bool a, bool b) { return a || b; });
}
inline int __all_sync(uint32_t mask, int predicate, EMU_SITE("__all_sync")) {
  return emu::reduce(site, mask, predicate != 0, [](bool a, bool b) { return a && b; });
}
template <class T>
unsigned __match_any_sync(uint32_t mask, T value, EMU_SITE("__match_any_sync")) {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "as CUDA's overloads");
  return emu::collective<unsigned>(site, mask, value, [](const auto& lanes) {
    lanes.each([&](int lane) {
      lanes.out(lane) = 0;
      lanes.each([&](int other) {
        if (!memcmp(&lanes.in(lane), &lanes.in(other), sizeof(T))) lanes.out(lane) |= 1u << other;
      });
    });
  });
}
template <class T>
T __reduce_add_sync(uint32_t mask, T value, EMU_SITE("__reduce_add_sync")) {
  static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value, "as CUDA's");
  return (T)emu::reduce(site, mask, (unsigned)value, [](unsigned a, unsigned b) { return a + b; });
}
template <class T>
T __reduce_min_sync(uint32_t mask, T value, EMU_SITE("__reduce_min_sync")) {
  static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value, "as CUDA's");
  return emu::reduce(site, mask, value, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
T __reduce_max_sync(uint32_t mask, T value, EMU_SITE("__reduce_max_sync")) {
  static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value, "as CUDA's");
  return emu::reduce(site, mask, value, [](T a, T b) { return b > a ? b : a; });
}
inline unsigned __reduce_and_sync(uint32_t mask, unsigned value, EMU_SITE("__reduce_and_sync")) {
  return emu::reduce(site, mask, value, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(uint32_t mask, unsigned value, EMU_SITE("__reduce_or_sync")) {
  return emu::reduce(site, mask, value, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_xor_sync(uint32_t mask, unsigned value, EMU_SITE("__reduce_xor_sync")) {
  return emu::reduce(site, mask, value, [](unsigned a, unsigned b) { return a ^ b; });
}

// --- atomics; each gives the old value ---
namespace emu {

template <class T, class Step>
T atomic(T* p, Step step) {
  T old, next;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do next = step(old);
  while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}

}  // namespace emu

#define EMU_ATOMIC(name, T, next)                                             \
  inline T name(T* p, T v) {                                                  \
    return emu::atomic(p, [v]([[maybe_unused]] T old) { return (T)(next); }); \
  }
#define EMU_ATOMICS(T, U)                                                    \
  EMU_ATOMIC(atomicAdd, T, (U)old + (U)v)                                    \
  EMU_ATOMIC(atomicMin, T, v < old ? v : old)                                \
  EMU_ATOMIC(atomicMax, T, v > old ? v : old)                                \
  EMU_ATOMIC(atomicAnd, T, old& v)                                           \
  EMU_ATOMIC(atomicOr, T, old | v)                                           \
  EMU_ATOMIC(atomicExch, T, v)                                               \
  inline T atomicCAS(T* p, T expected, T v) {                                \
    return emu::atomic(p, [=](T old) { return old == expected ? v : old; }); \
  }
EMU_ATOMICS(int, unsigned)
EMU_ATOMICS(unsigned, unsigned)
EMU_ATOMICS(unsigned long long, unsigned long long)
EMU_ATOMIC(atomicAdd, float, old + v)
EMU_ATOMIC(atomicExch, float, v)
#undef EMU_ATOMICS
#undef EMU_ATOMIC

// --- scalar intrinsics ---
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline float __int_as_float(int x) {
  float f;
  memcpy(&f, &x, 4);
  return f;
}
inline float __uint_as_float(unsigned x) { return __int_as_float((int)x); }
inline int __float_as_int(float f) {
  int x;
  memcpy(&x, &f, 4);
  return x;
}
inline unsigned __float_as_uint(float f) { return (unsigned)__float_as_int(f); }

// --- launch and shared memory, as launch.cuh asks for them ---
namespace emu {

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Arguments... arguments) {
  run({name, grid, block, shared_bytes, [&] { kernel(arguments...); }});
}

template <class T>
T* dynamic_shared() {
  static_assert(alignof(T) <= 16, "as aligned as launch.cuh says");
  return static_cast<T*>(current->block->shared.dynamic());
}

template <class T>
T& shared_object(const void* key) {
  static_assert(std::is_trivially_default_constructible<T>::value, "nothing is constructed");
  return *static_cast<T*>(current->block->shared.object(key, sizeof(T), alignof(T)));
}

}  // namespace emu
