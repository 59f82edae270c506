// Medusa's typical acceptance (Cai et al. 2024): the longest path of drafts that are likely enough,
// p >= min(threshold, alpha exp(-H)). What it emits is not the target's law.
#include "cuda/draft_tree.cuh"

namespace specfast::cuda {
namespace {

// exp(-H) of a law of weights w = 2^-o with sum S is 2^(-sum w o / S) / S.
__device__ float inverse_perplexity(Wide total_mass, Wide surprise) {
  float total = (float)(int64_t)total_mass * 0x1p-40f;
  return exp2((float)(int64_t)surprise * -0x1p-40f / total) / total;
}

template <class T>
__device__ bool is_typical(const TypicalSampleParams& p, const LawWork& work, const DraftTree& tree,
                           int32_t node, int32_t parent) {
  int64_t row = tree.row(parent);
  int32_t token = tree.token(node);
  if (token < 0 || token >= p.V) return false;
  const RowLaw& law = work.laws[row];
  float z = tempered(widen(logits_row<T>(p, row)[token]), law.scale.temperature);
  double share = law.holds(z, token) ? (double)weight(z, law.scale.exponent) * 0x1p40 : 0.0;
  double bar =
      min(p.threshold, p.alpha * inverse_perplexity(work.totals[row], work.surprises[row]));
  return !(share / (double)(int64_t)work.totals[row] < bar);
}

// The deepest node all of whose path is typical; of equals the lowest. For one thread.
template <class T>
__device__ int32_t deepest_typical(const TypicalSampleParams& p, const LawWork& work,
                                   const DraftTree& tree, int32_t* depth) {
  int32_t best = -1;
  depth[0] = 0;  // by node + 1
  for (int32_t node = 0; node < tree.length(); node++) {
    int32_t parent = tree.parents()[node];
    depth[node + 1] = -1;
    if (parent < -1 || parent >= node) continue;
    if (depth[parent + 1] < 0 || tree.status(parent) != kRowOk) continue;
    if (!is_typical<T>(p, work, tree, node, parent)) continue;
    depth[node + 1] = depth[parent + 1] + 1;
    if (depth[node + 1] > depth[best + 1]) best = node;
  }
  return best;
}

struct TypicalWork : LawWork {
  Draw* draws;  // [B]

  TypicalWork(const TypicalSampleParams& p, Carver& c) : LawWork(p, c) {
    draws = c.take<Draw>(p.B);
  }
};

constexpr int kTreeThreads = 32;

template <class T>
__global__ void __launch_bounds__(kTreeThreads) verify(TypicalSampleParams p, TypicalWork work) {
  SPECFAST_SHARED(AcceptedPath, path);
  SPECFAST_SHARED(int32_t[kMaxNodes + 1], depth);
  DraftTree tree{p, p, work.laws, blockIdx.x};
  if (!tree.has_rows()) return write_nothing(tree, work.draws[tree.b]);
  if (threadIdx.x == 0) {
    if (tree.is_greedy()) {
      match_peaks(tree, path);
    } else {
      int32_t last = deepest_typical<T>(p, work, tree, depth);
      path.size = depth[last + 1];
      for (int32_t j = path.size; j > 0; last = tree.parents()[last]) path.nodes[--j] = last;
    }
  }
  __syncthreads();
  int32_t next;
  Draw draw = target_draw(tree, path.last(), next);
  if (threadIdx.x == 0) work.draws[tree.b] = draw;
  write_path(tree, path, next);
}

template <class T>
__global__ void __launch_bounds__(kThreads) draw_slices(TypicalSampleParams p, TypicalWork work) {
  Draw& draw = work.draws[work.slices.row_of_block()];
  if (draw.row < 0) return;
  draw_slice_of_law(draw, logits_row<T>(p, draw.row), work.slices.of_block(), work.laws[draw.row]);
}

template <class T>
void launch_typical_sample(const TypicalSampleParams& p, Stream stream) {
  Carver carver{static_cast<char*>(p.workspace)};
  TypicalWork work(p, carver);
  plan_laws(p, work, stream);
  measure_laws(p, work, stream);
  SPECFAST_LAUNCH(verify<T>, dim3((unsigned)p.B), kTreeThreads, 0, stream, p, work);
  SPECFAST_LAUNCH(draw_slices<T>, work.slices.grid(p.B), kThreads, 0, stream, p, work);
  launch_write_drawn(p, work.draws, stream);
}

}  // namespace

int64_t workspace_bytes(const TypicalSampleParams& p) {
  Carver measure{nullptr};
  TypicalWork(p, measure);
  return measure.used;
}

void typical_sample(const TypicalSampleParams& p, Stream stream) {
  p.dtype == DType::bf16 ? launch_typical_sample<Bf16>(p, stream)
                         : launch_typical_sample<float>(p, stream);
}

}  // namespace specfast::cuda
