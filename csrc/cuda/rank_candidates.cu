#include "cuda/rank_lists.cuh"

namespace specfast::cuda {
namespace {

BestLists candidate_lists(const RankCandidatesParams& p, Carver& c) {
  BestLists lists{VocabSlices(p.V), p.m < kSlice ? p.m : kSlice};
  lists.carve(c, p.R);
  return lists;
}

template <class T>
__global__ void __launch_bounds__(kThreads) rank_slices(RankCandidatesParams p, BestLists lists) {
  SPECFAST_SHARED(float4[kSlice / 4], staged);
  int64_t row = lists.slices.row_of_block();
  Tile tile{reinterpret_cast<float*>(staged), lists.slices.of_block()};
  const T* logits = reinterpret_cast<const T*>(p.logits) + row * p.logits_stride;
  float t = p.temperature[row];
  bool greedy = is_greedy(t);
  tile.stage(logits, [&](int32_t, Quad& x) {
    for (int j = 0; j < 4; j++)
      x.v[j] = !(-kInfinity < x.v[j]) ? -kInfinity : greedy ? x.v[j] : tempered(x.v[j], t);
  });
  __syncthreads();
  TargetNoise noise{{(uint64_t)p.seeds[row], (uint32_t)p.positions[row]}, p.d2t};
  if (greedy) return list_plain(lists, row, tile, noise, p.m);
  list_perturbed(lists, row, tile, noise, p.m,
                 [&](int32_t i) { return tempered(widen(logits[i]), t); });
}

__global__ void __launch_bounds__(kThreads) merge_lists(RankCandidatesParams p, BestLists lists) {
  int64_t row = blockIdx.x;
  lists.write_best(row, p.m, [&](int64_t place, Rank r) {
    p.ids[row * p.m + place] = id_of(r);
    p.scores[row * p.m + place] = r ? score_of(r) : -kInfinity;
  });
}

template <class T>
void launch_rank_candidates(const RankCandidatesParams& p, Stream stream) {
  Carver carver{static_cast<char*>(p.workspace)};
  BestLists lists = candidate_lists(p, carver);
  SPECFAST_LAUNCH(rank_slices<T>, lists.slices.grid(p.R), kThreads, 0, stream, p, lists);
  SPECFAST_LAUNCH(merge_lists, dim3((unsigned)p.R), kThreads, 0, stream, p, lists);
}

}  // namespace

int64_t workspace_bytes(const RankCandidatesParams& p) {
  Carver measure{nullptr};
  candidate_lists(p, measure);
  return measure.used;
}

void rank_candidates(const RankCandidatesParams& p, Stream stream) {
  if (p.m == 0) return;
  p.dtype == DType::bf16 ? launch_rank_candidates<Bf16>(p, stream)
                         : launch_rank_candidates<float>(p, stream);
}

}  // namespace specfast::cuda
