// A row of logits, one slice of the vocabulary a block. Slices are the unit of parallel work;
// nothing that is computed from them depends on where they are cut.
#pragma once
#include "core/logit_law.h"
#include "core/noise.h"
#include "core/sort_key.h"
#include "cuda/elements.cuh"

namespace specfast::cuda {

constexpr int kThreads = 256;  // of a block, but where a block has a whole tree
constexpr int kSlice = 8192;

struct Slice {
  int64_t index, begin, end;
};

struct VocabSlices {
  int64_t vocab, count;

  SPECFAST_HD explicit VocabSlices(int64_t v) : vocab(v), count((v + kSlice - 1) / kSlice) {}
  __device__ Slice operator[](int64_t i) const {
    return {i, i * kSlice, (i + 1) * kSlice < vocab ? (i + 1) * kSlice : vocab};
  }
  // A grid of rows x slices, and what is this block's of it.
  dim3 grid(int64_t rows) const { return dim3((unsigned)(rows * count)); }
  __device__ int64_t row_of_block() const { return blockIdx.x / count; }
  __device__ Slice of_block() const { return (*this)[blockIdx.x % count]; }
};

// Tokens in order: score descending, then id ascending. Greater is better; 0 is nobody.
using Rank = unsigned long long;  // as 64-bit atomics take it
constexpr Rank kNanRank = ~0ull;  // before all others

__device__ __forceinline__ uint32_t order_of(float x) { return (uint32_t)sort_key(x) ^ 1u << 31; }
__device__ __forceinline__ Rank rank_of(float score, int32_t id) {
  return (Rank)order_of(score) << 32 | (uint32_t)~id;
}
__device__ __forceinline__ float score_of(Rank r) {
  return sort_key_float((int32_t)((uint32_t)(r >> 32) ^ 1u << 31));
}
__device__ __forceinline__ int32_t id_of(Rank r) { return (int32_t)~(uint32_t)r; }
__device__ __forceinline__ Rank best_of(Rank a, Rank b) { return a > b ? a : b; }

// Four tokens, of which the first has an id divisible by 4.
struct Quad {
  float v[4];
};

template <class T>
__device__ __forceinline__ const T* logits_row(const LogitRows& p, int64_t row) {
  return reinterpret_cast<const T*>(p.logits) + row * p.logits_stride;
}

// f(first id, quad) for this thread's share of a slice, which it reads once, kAtOnce tokens at a
// time; -inf for tokens past the end, which are visited up to whole passes.
template <int kAtOnce, class T, class F>
__device__ __forceinline__ void each_quad(const T* row, const Slice& s, F f) {
  constexpr int kCount = Elements<T>::kCount, kLoads = kAtOnce / kCount;
  for (int64_t pass = s.begin; pass < s.end; pass += blockDim.x * kAtOnce) {
    Elements<T> e[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; load++) {
      int64_t i = pass + (load * (int)blockDim.x + (int)threadIdx.x) * kCount;
      e[load] = load_elements(row + i, s.end - i);
    }
#pragma unroll
    for (int load = 0; load < kLoads; load++) {
      int64_t i = pass + (load * (int)blockDim.x + (int)threadIdx.x) * kCount;
#pragma unroll
      for (int q = 0; q < kCount; q += 4) {
        Quad x;
#pragma unroll
        for (int j = 0; j < 4; j++) x.v[j] = i + q + j < s.end ? e[load].v[q + j] : -kInfinity;
        f((int32_t)(i + q), x);
      }
    }
  }
}

// A slice in shared memory; tokens past its end are -inf.
struct Tile {
  static constexpr int kAtOnce = 16, kPass = kThreads * kAtOnce;
  float* v;  // [kSlice], 16-byte aligned
  Slice slice;

  __device__ int size() const {
    return ((int)(slice.end - slice.begin) + kPass - 1) / kPass * kPass;
  }
  // Reads the slice; f(first id, quad) may change what is staged of it.
  template <class T, class F>
  __device__ __forceinline__ void stage(const T* row, F f) const {
    specfast::cuda::each_quad<kAtOnce>(row, slice, [&](int32_t first, Quad x) {
      f(first, x);
      put(first, x);
    });
  }
  __device__ void put(int32_t first_id, const Quad& x) const {
    *reinterpret_cast<float4*>(v + (first_id - slice.begin)) = {x.v[0], x.v[1], x.v[2], x.v[3]};
  }
  // f(first id, quad) for this thread's share.
  template <class F>
  __device__ __forceinline__ void each_quad(F f) const {
    for (int i = (int)threadIdx.x * 4; i < size(); i += kThreads * 4) {
      float4 x = *reinterpret_cast<const float4*>(v + i);
      f((int32_t)(slice.begin + i), Quad{{x.x, x.y, x.z, x.w}});
    }
  }
  // f(rank) for this thread's share of what is not -inf; map(id): the id it is ranked by.
  template <class F, class Map>
  __device__ __forceinline__ void each(F f, Map map) const {
    each_quad([&](int32_t first, const Quad& x) {
      for (int j = 0; j < 4; j++)
        if (-kInfinity < x.v[j]) f(rank_of(x.v[j], map(first + j)));
    });
  }
  template <class F>
  __device__ __forceinline__ void each(F f) const {
    each(f, [](int32_t id) { return id; });
  }
};

__device__ __forceinline__ Quad tempered_quad(const Quad& x, float temperature) {
  Quad z;
#pragma unroll
  for (int j = 0; j < 4; j++) z.v[j] = tempered(x.v[j], temperature);
  return z;
}

// Of z's rank, z + G's.
__device__ __forceinline__ Rank perturbed(Rank r, const NoiseKey& key) {
  return rank_of(score_of(r) + gumbel_of_id(key, (uint32_t)id_of(r)), id_of(r));
}

__device__ __forceinline__ bool may_reach(float z, float noise, float bar) {
  return -kInfinity < z && !(z + noise < bar);
}

// f(j, z + G) for those of the quad that may reach the bar: rounding is monotone, so z + bound <
// bar decides it whatever was seen before.
template <class F>
__device__ __forceinline__ void each_perturbed(const Quad& z, int32_t first, const NoiseKey& key,
                                               float bar, F f) {
  bool any = false;
#pragma unroll
  for (int j = 0; j < 4; j++) any |= may_reach(z.v[j], kMaxGumbel, bar);
  if (!any) return;
  PhiloxBlock<uint32_t> block = keyed_noise((uint32_t)first / 4, key);
  const uint32_t words[4] = {block.x0, block.x1, block.x2, block.x3};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float v = uniform(words[j]);
    if (may_reach(z.v[j], gumbel_bound(v), bar)) f(j, z.v[j] + gumbel(v));
  }
}

}  // namespace specfast::cuda
