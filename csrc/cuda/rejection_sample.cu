// p/q rejection over a draft tree (Leviathan et al. 2023, Sun et al. 2024, Weng et al. 2025). The
// token rule judges from the root on, each node by itself; block and traversal verification judge
// leaves first, by `acc`, which is carried down the path. Siblings are judged in order, each
// against what those before it left. A block walks a tree; it goes over the vocabulary only for
// drafts that were sampled.
#include "cuda/draft_tree.cuh"
#include "cuda/node_law.cuh"

namespace specfast::cuda {
namespace {

constexpr int kTreeThreads = 512;

struct RejectionWork : LawWork {
  DraftLaws draft_laws;
  Residual* residuals;  // [B] of what is left where a tree's walk ended
  Draw* draws;          // [B]

  RejectionWork(const RejectionSampleParams& p, Carver& c) : LawWork(p, c), draft_laws(p, c) {
    residuals = c.take<Residual>(p.B);
    draws = c.take<Draw>(p.B);
  }
};

struct Level {
  int32_t node;        // -1: the root
  int32_t next_child;  // those below it are judged
  double acc;          // the probability that it is accepted if no child is
  Wide total;          // of what is left of the target's law here
  bool is_residual;    // some child was rejected
  bool is_restored;    // and nothing was left: the row's own law again
};

// What a walk keeps in shared memory.
struct Walk {
  Level levels[kMaxNodes];      // above the one at hand
  Rejection judged[kMaxNodes];  // by node; a and b once it is rejected
  Residual left;                // at the level at hand
  int32_t earlier[kMaxNodes];   // draft ids of a node's earlier siblings
  int32_t num_earlier;
  AcceptedPath path;
};

// Every thread keeps the same level at hand, and finds the same; the first writes.
template <class T>
class Verification {
 public:
  __device__ Verification(const RejectionSampleParams& p, const RejectionWork& work,
                          const DraftTree& tree, Walk& shared)
      : p_(p), work_(work), tree_(tree), shared_(shared) {}

  __device__ void run() {
    here_ = level(-1, 1.0);
    walk();
    if (threadIdx.x == 0) {
      shared_.path.size = depth_;
      for (int i = 1; i < depth_; i++) shared_.path.nodes[i - 1] = shared_.levels[i].node;
      if (depth_ > 0) shared_.path.nodes[depth_ - 1] = here_.node;
    }
    list_rejected();
    int32_t next = -1;
    Draw draw = here_.is_residual ? residual_draw() : target_draw(tree_, here_.node, next);
    Residual& left = work_.residuals[tree_.b];
    for (int i = threadIdx.x; i < shared_.left.size; i += kTreeThreads)
      left.rejections[i] = shared_.left.rejections[i];
    if (threadIdx.x == 0) {
      left.size = shared_.left.size;
      work_.draws[tree_.b] = draw;
    }
    write_path(tree_, shared_.path, next);
  }

 private:
  __device__ Level level(int32_t node, double acc) const {
    return {node, 0, acc, work_.totals[tree_.row(node)], false, false};
  }
  __device__ void enter(int32_t node, double acc) {
    if (threadIdx.x == 0) shared_.levels[depth_] = here_;
    depth_++;
    here_ = level(node, acc);
  }
  __device__ void leave() {
    __syncthreads();
    here_ = shared_.levels[--depth_];
    __syncthreads();
  }
  __device__ int32_t child() const { return tree_.child(here_.node, here_.next_child); }

  // walk.left: the rejections at the level at hand, in order.
  __device__ void list_rejected() {
    __syncthreads();
    if (threadIdx.x == 0) {
      int n = 0, end = here_.is_restored ? 0 : here_.next_child;
      for (int32_t node = here_.node;
           (node = next_child(tree_.parents(), end, here_.node, node + 1)) >= 0;)
        shared_.left.rejections[n++] = shared_.judged[node];
      shared_.left.size = n;
    }
    __syncthreads();
  }
  __device__ NodeLaw<T> left() const {
    return {logits_row<T>(p_, tree_.row(here_.node)), tree_.law(here_.node), shared_.left,
            work_.draft_laws};
  }
  __device__ float left_of(int32_t token) {
    list_rejected();
    return token >= 0 && token < p_.V ? left().weight_of(token) : 0.0f;
  }
  __device__ double share(float weight) const {
    return here_.total ? (double)weight * 0x1p40 / (double)(int64_t)here_.total : 0.0;
  }

  // What a node was drawn from; its earlier siblings' tokens are left out.
  __device__ DraftLaw law_of(int32_t node) {
    const DraftLaws& laws = work_.draft_laws;
    int64_t row = p_.law_row ? p_.law_row[tree_.b * p_.N + node] : -1;
    int32_t token = tree_.token(node);
    if (row < 0 || row >= laws.count || token < 0 || token >= p_.V) return point_mass();
    list_earlier(node);
    const int32_t* earlier = shared_.earlier;
    int count = shared_.num_earlier;
    DraftLaw law = laws.laws[row];
    if (count > 0)
      law = laws.measure(row, [&](int32_t id) {
        for (int i = 0; i < count; i++)
          if (earlier[i] == id) return false;
        return true;
      });
    return laws.share(law, token) > 0.0 ? law : point_mass();
  }
  __device__ void list_earlier(int32_t node) {
    __syncthreads();
    if (threadIdx.x == 0) {
      int n = 0;
      int32_t parent = tree_.parents()[node];
      for (int32_t i = parent; (i = next_child(tree_.parents(), node, parent, i + 1)) >= 0;) {
        int32_t token = tree_.token(i);
        int32_t id = token >= 0 && token < p_.V ? work_.draft_laws.index_of(token) : -1;
        if (id >= 0) shared_.earlier[n++] = id;
      }
      shared_.num_earlier = n;
    }
    __syncthreads();
  }

  // The probability that a child is accepted, from what it was drawn from.
  __device__ double judge(int32_t node, const DraftLaw& law) {
    int32_t token = tree_.token(node);
    if (threadIdx.x == 0) shared_.judged[node] = {law, token, 0.0f, 0.0f};
    double p = here_.acc * share(left_of(token));
    double q = law.row < 0 ? 1.0 : work_.draft_laws.share(law, token);
    return p < q ? p / q : 1.0;
  }

  __device__ bool accepted(int32_t node, double acc) const {
    int32_t parent = tree_.parents()[node];
    return coin_falls(step_noise(tree_.seed(parent), tree_.position(parent), kNoiseAccept, node,
                                 (uint32_t)p_.roots[tree_.b]),
                      acc);
  }

  // Leaves of the law at hand, and of its acc, what this child has not.
  __device__ void reject(int32_t node) {
    __syncthreads();
    const DraftLaw law = shared_.judged[node].law;
    double rest, before = (double)(int64_t)here_.total;
    if (law.row < 0) {
      here_.total -= mass(left_of(tree_.token(node)));
      rest = here_.acc * ((double)(int64_t)here_.total / before);
    }
    if (law.row >= 0 && threadIdx.x == 0) {
      shared_.judged[node].a = (float)(here_.acc * 0x1p40 / before);
      shared_.judged[node].b = (float)(0x1p40 / (double)(int64_t)law.total);
    }
    here_.next_child = node + 1;
    here_.is_residual = true;
    if (law.row >= 0) {
      list_rejected();
      here_.total = left().measure(work_.slices);
      rest = (double)(int64_t)here_.total * 0x1p-40;
    }
    if (here_.total) {
      here_.acc = rest / (rest + (1.0 - here_.acc));
      return;
    }
    here_.is_restored = true;
    here_.next_child = tree_.length();
    if (here_.acc < 1.0) here_.acc = 0.0;
  }

  // By token, the coin of a child is tossed when it is judged; else when nothing below it is left.
  __device__ void walk() {
    for (;;) {
      int32_t node = child();
      if (node >= 0) {
        double acc = judge(node, law_of(node));
        if (!p_.by_token || accepted(node, acc)) {
          enter(node, p_.by_token ? 1.0 : acc);
          continue;
        }
      } else {
        node = here_.node;
        if (p_.by_token || depth_ == 0 || accepted(node, here_.acc)) return;
        leave();
      }
      reject(node);
    }
  }

  __device__ Draw residual_draw() const {
    int32_t node = here_.node;
    return {0,
            step_noise(tree_.seed(node), tree_.position(node), kNoiseResidual, node,
                       (uint32_t)p_.roots[tree_.b]),
            tree_.row(node)};
  }

  const RejectionSampleParams& p_;
  const RejectionWork& work_;
  const DraftTree& tree_;
  Walk& shared_;
  int32_t depth_ = 0;
  Level here_;
};

template <class T>
__global__ void __launch_bounds__(kTreeThreads, 1)
    verify(RejectionSampleParams p, RejectionWork work) {
  SPECFAST_SHARED(Walk, walk);
  DraftTree tree{p, p, work.laws, blockIdx.x};
  if (!tree.has_rows()) return write_nothing(tree, work.draws[tree.b]);
  if (!tree.is_greedy()) return Verification<T>(p, work, tree, walk).run();
  if (threadIdx.x == 0) match_peaks(tree, walk.path);
  __syncthreads();
  int32_t next;
  Draw draw = target_draw(tree, walk.path.last(), next);
  if (threadIdx.x == 0) work.draws[tree.b] = draw, work.residuals[tree.b].size = 0;
  write_path(tree, walk.path, next);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    draw_slices(RejectionSampleParams p, RejectionWork work) {
  int64_t b = work.slices.row_of_block();
  Draw& draw = work.draws[b];
  if (draw.row < 0) return;
  const T* logits = logits_row<T>(p, draw.row);
  const RowLaw& law = work.laws[draw.row];
  const Residual& left = work.residuals[b];
  Slice s = work.slices.of_block();
  if (!left.size) return draw_slice_of_law(draw, logits, s, law);
  NodeLaw<T> node_law{logits, law, left, work.draft_laws};
  draw_slice(draw, logits, s, 0,
             [&](int32_t first, const Quad& x) { return node_law.scores(first, x); });
}

template <class T>
void launch_rejection_sample(const RejectionSampleParams& p, Stream stream) {
  Carver carver{static_cast<char*>(p.workspace)};
  RejectionWork work(p, carver);
  plan_laws(p, work, stream);
  measure_laws(p, work, stream);
  launch_draft_laws(work.draft_laws, stream);
  SPECFAST_LAUNCH(verify<T>, dim3((unsigned)p.B), kTreeThreads, 0, stream, p, work);
  SPECFAST_LAUNCH(draw_slices<T>, work.slices.grid(p.B), kThreads, 0, stream, p, work);
  launch_write_drawn(p, work.draws, stream);
}

}  // namespace

int64_t workspace_bytes(const RejectionSampleParams& p) {
  Carver measure{nullptr};
  RejectionWork(p, measure);
  return measure.used;
}

void rejection_sample(const RejectionSampleParams& p, Stream stream) {
  p.dtype == DType::bf16 ? launch_rejection_sample<Bf16>(p, stream)
                         : launch_rejection_sample<float>(p, stream);
}

}  // namespace specfast::cuda
