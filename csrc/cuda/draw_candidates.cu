// Gumbel top-m: the m best of z + G are m draws from softmax(z) without replacement.
#include "cuda/rank_lists.cuh"
#include "cuda/row_laws.cuh"

namespace specfast::cuda {
namespace {

struct DrawWork : LawWork {
  BestLists lists;

  DrawWork(const DrawCandidatesParams& p, Carver& c)
      : LawWork(p, c), lists{slices, p.m < kSlice ? p.m : kSlice} {
    lists.carve(c, p.R);
  }
};

// Writes the slice of the law, as -inf outside the support, and lists its best.
template <class T>
__global__ void __launch_bounds__(kThreads) draw_slices(DrawCandidatesParams p, DrawWork work) {
  SPECFAST_SHARED(float4[kSlice / 4], staged);
  int64_t row = work.slices.row_of_block();
  Tile tile{reinterpret_cast<float*>(staged), work.slices.of_block()};
  const RowLaw law = work.laws[row];
  const T* logits = logits_row<T>(p, row);
  tile.stage(logits, [&](int32_t first, Quad& x) {
    if (law.drawn) x = law.supported(first, x);
    store_elements(p.laws + row * p.V + first, Elements<float>{x.v[0], x.v[1], x.v[2], x.v[3]},
                   tile.slice.end - first);
  });
  __syncthreads();
  if (law.status != kRowOk) return work.lists.leave_empty(row, tile.slice.index);
  if (p.m == 0) return;
  TargetNoise noise{step_noise((uint64_t)p.seeds[row], (uint32_t)p.positions[row], kNoiseDraft,
                               p.nodes[row], (uint32_t)p.roots[row]),
                    p.d2t};
  if (!law.drawn) return list_plain(work.lists, row, tile, noise, p.m);
  list_perturbed(work.lists, row, tile, noise, p.m,
                 [&](int32_t i) { return tempered(widen(logits[i]), law.scale.temperature); });
}

__global__ void __launch_bounds__(kThreads) merge_lists(DrawCandidatesParams p, BestLists lists) {
  int64_t row = blockIdx.x;
  lists.write_best(row, p.m, [&](int64_t place, Rank r) { p.ids[row * p.m + place] = id_of(r); });
}

template <class T>
void launch_draw_candidates(const DrawCandidatesParams& p, Stream stream) {
  Carver carver{static_cast<char*>(p.workspace)};
  DrawWork work(p, carver);
  plan_laws(p, work, stream);
  SPECFAST_LAUNCH(draw_slices<T>, work.slices.grid(p.R), kThreads, 0, stream, p, work);
  if (p.m > 0)
    SPECFAST_LAUNCH(merge_lists, dim3((unsigned)p.R), kThreads, 0, stream, p, work.lists);
}

}  // namespace

int64_t workspace_bytes(const DrawCandidatesParams& p) {
  Carver measure{nullptr};
  DrawWork(p, measure);
  return measure.used;
}

void draw_candidates(const DrawCandidatesParams& p, Stream stream) {
  p.dtype == DType::bf16 ? launch_draw_candidates<Bf16>(p, stream)
                         : launch_draw_candidates<float>(p, stream);
}

}  // namespace specfast::cuda
