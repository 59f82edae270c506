// What drafts were drawn from: rows of logits at temperature 1.
#pragma once
#include "cuda/row_law.cuh"

namespace specfast::cuda {

// A row of draft_laws, less its earlier siblings' tokens. A point mass where there is no row.
struct DraftLaw {
  int64_t row;          // -1: a point mass
  float top, exponent;  // of the largest z that is left
  Wide total;
};

__device__ inline DraftLaw point_mass() { return {-1, 0.0f, 0.0f, 0}; }
constexpr int32_t kUnmapped = INT32_MAX;

// All laws of a call, two launches: find_law_tops, then measure_draft_laws.
struct DraftLaws {
  VocabSlices slices;
  const float* z;      // [num_laws, law_vocab]
  const int32_t* map;  // [law_vocab] target ids, or null (the same)
  int64_t count, target_vocab;
  uint32_t* tops;     // [num_laws, slices] in order_of
  DraftLaw* laws;     // [num_laws] with nothing left out
  int32_t* draft_id;  // [V] the lowest draft id of each target id, else kUnmapped

  DraftLaws(const RejectionSampleParams& p, Carver& c)
      : slices(p.law_vocab),
        z(p.laws),
        map(p.vocab_map),
        count(p.laws ? p.num_laws : 0),
        target_vocab(p.V) {
    tops = c.take<uint32_t>(count * slices.count);
    laws = c.take<DraftLaw>(count);
    draft_id = c.take<int32_t>(map ? target_vocab : 0);
  }
  __device__ const float* row(int64_t law) const { return z + law * slices.vocab; }
  __device__ int32_t index_of(int32_t token) const {
    int32_t i = map ? draft_id[token] : token;
    return i < slices.vocab ? i : -1;
  }
  __device__ float weight_at(const DraftLaw& law, int32_t i) const {
    return weight(min(tempered(row(law.row)[i], 1.0f), law.top), law.exponent);
  }
  __device__ double share(const DraftLaw& law, int32_t token) const {
    int32_t i = law.total ? index_of(token) : -1;
    if (i < 0) return 0.0;
    return (double)weight_at(law, i) * 0x1p40 / (double)(int64_t)law.total;
  }
  // Its top and exponent, then its total, without the tokens that is_left(draft id) denies. Called
  // by the block.
  template <class IsLeft>
  __device__ DraftLaw measure(int64_t row_index, IsLeft is_left) const {
    DraftLaw law{row_index, -kInfinity, 0.0f, 0};
    const float* x = row(row_index);
    for (int64_t i = 0; i < slices.count; i++)
      each_quad<8>(x, slices[i], [&](int32_t first, const Quad& q) {
        for (int j = 0; j < 4; j++)
          if (is_left(first + j)) law.top = max(tempered(q.v[j], 1.0f), law.top);
      });
    law.top = block_max(law.top);
    if (law.top == -kInfinity) return law;
    law.exponent = row_exponent(law.top);
    for (int64_t i = 0; i < slices.count; i++)
      each_quad<8>(x, slices[i], [&](int32_t first, const Quad& q) {
        for (int j = 0; j < 4; j++)
          if (is_left(first + j)) law.total += mass(weight(tempered(q.v[j], 1.0f), law.exponent));
      });
    law.total = block_sum(law.total);
    return law;
  }
};

static __global__ void __launch_bounds__(kThreads) find_law_tops(DraftLaws d) {
  int64_t law = d.slices.row_of_block();
  Slice s = d.slices.of_block();
  float top = -kInfinity;
  each_quad<16>(d.row(law), s, [&](int32_t, const Quad& q) {
    for (int j = 0; j < 4; j++) top = max(tempered(q.v[j], 1.0f), top);
  });
  top = block_max(top);
  if (threadIdx.x == 0) d.tops[blockIdx.x] = order_of(top);
  if (threadIdx.x == 0 && s.index == 0) d.laws[law] = {law, -kInfinity, 0.0f, 0};
  int64_t step = (int64_t)gridDim.x * kThreads;
  for (int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x; d.map && i < d.target_vocab;
       i += step)
    d.draft_id[i] = kUnmapped;
}

static __global__ void __launch_bounds__(kThreads) measure_draft_laws(DraftLaws d) {
  int64_t law = d.slices.row_of_block();
  Slice s = d.slices.of_block();
  float top = -kInfinity;
  for (int64_t i = threadIdx.x; i < d.slices.count; i += kThreads)
    top = max(score_of((Rank)d.tops[law * d.slices.count + i] << 32), top);
  top = block_max(top);
  float exponent = row_exponent(top);
  Wide total = 0;
  each_quad<8>(d.row(law), s, [&](int32_t, const Quad& q) {
    for (int j = 0; j < 4; j++) total += mass(weight(tempered(q.v[j], 1.0f), exponent));
  });
  total = block_sum(top == -kInfinity ? 0 : total);
  if (threadIdx.x == 0) {
    if (s.index == 0) d.laws[law].top = top, d.laws[law].exponent = exponent;
    atomicAdd(&d.laws[law].total, total);
  }
  if (law > 0 || !d.map) return;
  for (int64_t i = s.begin + threadIdx.x; i < s.end; i += kThreads)
    if (d.map[i] >= 0 && d.map[i] < d.target_vocab) atomicMin(&d.draft_id[d.map[i]], (int32_t)i);
}

inline void launch_draft_laws(const DraftLaws& d, Stream stream) {
  dim3 grid = d.slices.grid(d.count);
  SPECFAST_LAUNCH(find_law_tops, grid, kThreads, 0, stream, d);
  SPECFAST_LAUNCH(measure_draft_laws, grid, kThreads, 0, stream, d);
}

}  // namespace specfast::cuda
