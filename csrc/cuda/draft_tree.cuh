// One sequence's draft tree, the laws of its rows, the path that is accepted of it and the draw of
// the token after that.
#pragma once
#include "core/tree.h"
#include "cuda/row_laws.cuh"

namespace specfast::cuda {

// Nodes are indices, -1 is the root; a node's row decides its children.
struct DraftTree {
  const DraftTrees& trees;
  const LogitRows& rows;
  const RowLaw* laws;  // [R]
  int64_t b;

  __device__ int32_t length() const { return trees.lengths[b]; }
  // Nobody has looked at these values: a tree that reaches past its arrays has no rows.
  __device__ bool has_rows() const {
    int64_t root = trees.row_base[b], n = length();
    return root >= 0 && n <= trees.N && n <= kMaxNodes && root + (n > 0 ? n : 0) < rows.R;
  }
  __device__ const int32_t* tokens() const { return trees.draft_tokens + b * trees.N; }
  __device__ int32_t token(int32_t node) const { return tokens()[node]; }
  __device__ const int32_t* parents() const { return trees.parents + b * trees.N; }
  __device__ int64_t row(int32_t node) const { return (int64_t)trees.row_base[b] + 1 + node; }
  __device__ const RowLaw& law(int32_t node) const { return laws[row(node)]; }
  __device__ uint64_t seed(int32_t node) const { return (uint64_t)rows.seeds[row(node)]; }
  __device__ uint32_t position(int32_t node) const { return (uint32_t)rows.positions[row(node)]; }
  __device__ bool is_greedy() const { return specfast::is_greedy(rows.temperature[row(-1)]); }
  __device__ int32_t status(int32_t node) const {
    return trees.row_status[row(node)] | law(node).status;
  }
  // The lowest child from node `first` on. A row that is no good judges nothing: it has none.
  __device__ int32_t child(int32_t node, int32_t first) const {
    if (status(node) != kRowOk) return -1;
    return next_child(parents(), length(), node, first > node ? first : node + 1);
  }
};

// A path, in shared memory.
struct AcceptedPath {
  int32_t nodes[kMaxNodes];
  int32_t size;

  __device__ int32_t last() const { return size ? nodes[size - 1] : -1; }
};

// A greedy target decides by itself: the nodes that are its tokens. For one thread.
__device__ inline void match_peaks(const DraftTree& tree, AcceptedPath& path) {
  path.size = 0;
  for (int32_t node = -1; tree.status(node) == kRowOk; path.nodes[path.size++] = node) {
    node = matching_child(tree.tokens(), tree.parents(), tree.length(), node,
                          id_of(tree.law(node).peak));
    if (node < 0) break;
  }
}

// What is drawn for a tree once its path is known: the best z + G of a row, by slices.
struct Draw {
  Rank best;
  NoiseKey key;
  int64_t row;  // -1: nothing is drawn
};

// The target's own draw at a node, as in plain decoding; where it is greedy, or decides nothing,
// that is the next token at once.
__device__ inline Draw target_draw(const DraftTree& tree, int32_t node, int32_t& next) {
  const RowLaw& law = tree.law(node);
  next = -1;
  if (tree.status(node) == kRowOk && law.drawn)
    return {0, {tree.seed(node), tree.position(node)}, tree.row(node)};
  if (tree.status(node) == kRowOk) next = id_of(law.peak);
  return {0, {}, -1};
}

// Adds a slice to a draw; zs(first id, logits) gives the z of four. best: a start, to raise the
// bar.
template <class T, class Zs>
__device__ void draw_slice(Draw& draw, const T* logits, const Slice& s, Rank best, Zs zs) {
  float bar = best ? score_of(best) : -kInfinity;
  each_quad<8>(logits, s, [&](int32_t first, const Quad& x) {
    each_perturbed(zs(first, x), first, draw.key, bar, [&](int j, float score) {
      best = best_of(best, rank_of(score, first + j));
      bar = score_of(best);
    });
  });
  best = block_best(best);
  if (threadIdx.x == 0) atomicMax(&draw.best, best);
}

// As draw_slice, of a row's own law.
template <class T>
__device__ void draw_slice_of_law(Draw& draw, const T* logits, const Slice& s, const RowLaw& law) {
  Rank peak = rank_of(law.scale.z_max, id_of(law.peak));
  Rank start = law.holds(law.scale.z_max, id_of(law.peak)) ? perturbed(peak, draw.key) : 0;
  draw_slice(draw, logits, s, start,
             [&](int32_t first, const Quad& x) { return law.supported(first, x); });
}

static __global__ void __launch_bounds__(kThreads)
    write_drawn(DraftTrees trees, const Draw* draws) {
  int64_t b = (int64_t)blockIdx.x * kThreads + threadIdx.x;
  if (b < trees.B && draws[b].row >= 0) trees.next_tokens[b] = id_of(draws[b].best);
}

inline void launch_write_drawn(const DraftTrees& trees, const Draw* draws, Stream stream) {
  SPECFAST_LAUNCH(write_drawn, dim3((unsigned)ceil_div(trees.B, kThreads)), kThreads, 0, stream,
                  trees, draws);
}

// `path` is complete, and all threads know it.
__device__ inline void write_path(const DraftTree& tree, const AcceptedPath& path, int32_t next) {
  int32_t* out = tree.trees.path + tree.b * tree.trees.N;
  for (int64_t j = threadIdx.x; j < tree.trees.N; j += blockDim.x)
    out[j] = j < path.size ? path.nodes[j] : -1;
  if (threadIdx.x > 0) return;
  int32_t all = tree.status(-1);
  for (int32_t j = 0; j < path.size; j++) all |= tree.status(path.nodes[j]);
  tree.trees.num_accepted[tree.b] = path.size;
  tree.trees.next_tokens[tree.b] = next;
  tree.trees.status[tree.b] = all;
}

// A sequence whose tail stops short decides nothing.
__device__ inline void write_nothing(const DraftTree& tree, Draw& draw) {
  const DraftTrees& trees = tree.trees;
  for (int64_t j = threadIdx.x; j < trees.N; j += blockDim.x) trees.path[tree.b * trees.N + j] = -1;
  if (threadIdx.x > 0) return;
  trees.num_accepted[tree.b] = trees.status[tree.b] = 0;
  trees.next_tokens[tree.b] = -1;
  draw.row = -1;
}

}  // namespace specfast::cuda
