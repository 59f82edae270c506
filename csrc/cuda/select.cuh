// The best of many tokens without a sort, by histograms: of how near a token's score is to the
// largest, then of the digits of its rank within the one bin where the boundary falls. Counts and
// masses are integers, so no result depends on who adds first.
#pragma once
#include "core/carver.h"
#include "cuda/block_reduce.cuh"

namespace specfast::cuda {

constexpr int kBins = 1024;
constexpr float kBinsPerNat = 16.0f;

// The bin of a score: the last for those next to the top, the first for all that are far below.
__device__ __forceinline__ int nearness(float top, float score) {
  return kBins - 1 - (int)min((top - score) * kBinsPerNat, (float)(kBins - 1));
}

struct Found {
  int bin;
  bool takes_all;  // of the bin
  Wide rest;       // of the target, for this bin to give
};

// The bin where sums from the last bin down reach the target, as all together do.
template <int kCount, class Bin>
__device__ Found find_bin(const Bin* bins, Wide target) {
  SPECFAST_SHARED(Found, found);
  constexpr int kEach = kCount / kThreads;
  int last = kCount - 1 - (int)threadIdx.x * kEach;
  Wide own = 0;
  for (int i = 0; i < kEach; i++) own += bins[last - i];
  Wide before = sum_before(own);
  if (before < target && target <= before + own) {
    int bin = last;
    for (; before + bins[bin] < target; bin--) before += bins[bin];
    found = {bin, before + bins[bin] == target, target - before};
  }
  __syncthreads();
  return found;  // written again only beyond sum_before's barrier
}

struct CountOne {
  __device__ Wide operator()(Rank) const { return 1; }
};
struct CountMass {
  float exponent;
  __device__ Wide operator()(Rank r) const { return mass(weight(score_of(r), exponent)); }
};

// The least rank of the shortest prefix whose measures reach the target, as all together do.
// each(f): f(rank) for this thread's share, the same at every call. Equal scores measure the same.
template <class Each, class Measure>
__device__ Rank shortest_prefix(const Each& each, Wide target, const Measure& measure) {
  SPECFAST_SHARED(Wide[kThreads], bins);
  Rank least = 0;
#pragma unroll 1
  for (int shift = 56; shift >= 0; shift -= 8) {
    bins[threadIdx.x] = 0;
    __syncthreads();
    each([&](Rank r) {
      if (r >> shift >> 8 == least >> shift >> 8) atomicAdd(&bins[r >> shift & 255], measure(r));
    });
    __syncthreads();
    Found digit = find_bin<kThreads>(bins, target);
    least |= (Rank)digit.bin << shift;
    target = digit.rest;
    if (digit.takes_all) break;  // every rank that begins so
  }
  return least;
}

// A prefix of all tokens in order: the bins nearer than `bin`, and of that one the ranks from
// `least` on.
struct Cut {
  int bin;
  Rank least;

  __device__ bool keeps(int of_bin, Rank r) const {
    return of_bin > bin || (of_bin == bin && r >= least);
  }
};

constexpr Cut kKeepAll = {0, 0};

// The n best of each(f), n > 0, or all.
template <class Each>
__device__ Cut cut_to(const Each& each, float top, Wide n) {
  SPECFAST_SHARED(unsigned[kBins], counts);
  for (int i = threadIdx.x; i < kBins; i += kThreads) counts[i] = 0;
  __syncthreads();
  each([&](Rank r) { atomicAdd(&counts[nearness(top, score_of(r))], 1u); });
  __syncthreads();
  Wide own = 0;
  for (int i = threadIdx.x; i < kBins; i += kThreads) own += counts[i];
  if (block_sum(own) <= n) return kKeepAll;
  Found found = find_bin<kBins>(counts, n);
  if (found.takes_all) return {found.bin, 0};
  auto each_of_bin = [&](auto f) {
    each([&](Rank r) {
      if (nearness(top, score_of(r)) == found.bin) f(r);
    });
  };
  return {found.bin, shortest_prefix(each_of_bin, found.rest, CountOne{})};
}

// The best of each slice of a row, in no order.
struct BestLists {
  VocabSlices slices;
  int64_t capacity;
  Rank* ranks = nullptr;     // [R, slices, capacity]
  int32_t* sizes = nullptr;  // [R, slices]

  void carve(Carver& c, int64_t rows) {
    ranks = c.take<Rank>(rows * slices.count * capacity);
    sizes = c.take<int32_t>(rows * slices.count);
  }
  // A slice's list: the n best of each(f), 0 < n, whose largest score is top.
  template <class Each>
  __device__ void fill(int64_t row, int64_t slice, const Each& each, float top, Wide n) const {
    SPECFAST_SHARED(int, size);
    Cut cut = cut_to(each, top, n);
    if (threadIdx.x == 0) size = 0;
    __syncthreads();
    int64_t list = row * slices.count + slice;
    each([&](Rank r) {
      if (!cut.keeps(nearness(top, score_of(r)), r)) return;
      int at = atomicAdd(&size, 1);
      if (at < capacity) ranks[list * capacity + at] = r;  // equal ranks may be one too many
    });
    __syncthreads();
    if (threadIdx.x == 0) sizes[list] = size < capacity ? size : (int32_t)capacity;
    __syncthreads();
  }
  __device__ void leave_empty(int64_t row, int64_t slice) const {
    if (threadIdx.x == 0) sizes[row * slices.count + slice] = 0;
  }
  // f(rank, its index) for this thread's share of a row.
  template <class F>
  __device__ void each(int64_t row, F f) const {
    int64_t first = row * slices.count;
    for (int64_t i = threadIdx.x; i < slices.count * capacity; i += kThreads)
      if (i % capacity < sizes[first + i / capacity]) f(ranks[first * capacity + i], i);
  }
  // write(place, rank) of the n best of a row, best first; rank 0 past the end.
  template <class Write>
  __device__ void write_best(int64_t row, int64_t n, Write write) const {
    Wide found = 0;
    each(row, [&](Rank r, int64_t i) {
      found++;
      int64_t place = count_before(row, r, i, n);
      if (place < n) write(place, r);
    });
    for (int64_t place = block_sum(found) + threadIdx.x; place < n; place += kThreads)
      write(place, 0);
  }

 private:
  // How many of a row come before rank r at index i, up to n.
  __device__ int64_t count_before(int64_t row, Rank r, int64_t i, int64_t n) const {
    int64_t before = 0;
    for (int64_t slice = 0; slice < slices.count; slice++) {
      int64_t list = row * slices.count + slice;
      for (int64_t at = 0; at < sizes[list] && before < n; at++) {
        Rank other = ranks[list * capacity + at];
        before += other > r || (other == r && slice * capacity + at < i);
      }
    }
    return before;
  }
};

}  // namespace specfast::cuda
