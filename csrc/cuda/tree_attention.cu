#include <stdexcept>

#include "cuda/attention_block.cuh"

namespace specfast::cuda {
namespace {

// Blocks of threads that keep a GPU busy, and the floats that this may cost in the workspace.
constexpr int64_t kEnoughBlocks = 512;
constexpr int64_t kMostFloats = 1 << 26;

// Of the cache and of a block table: slots and positions are 32-bit numbers here.
constexpr int64_t kMostSlots = 1 << 30;

void require(bool condition, const std::string& what) {
  if (!condition) throw std::invalid_argument(what);
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

int64_t greatest_common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

int64_t num_floats(const TreeAttentionParams& p, int64_t slots) {
  return p.M * p.H * slots * (p.cache.head_dim + kStateTail);
}

// The most that a row may see.
int64_t num_splits(const TreeAttentionParams& p) {
  int64_t positions = p.max_blocks * p.cache.block_size, splits = ceil_div(positions, kSplit);
  if (p.window == 0 || p.window >= positions) return splits;
  int64_t in_window = (p.window + kSplit - 2) / kSplit + 1;
  return in_window < splits ? in_window : splits;
}

// With room for `floats`. The mean number of a sequence's rows chooses the layout.
AttentionPlan make_plan(const TreeAttentionParams& p, int64_t floats) {
  int64_t kv_heads = p.cache.num_kv_heads, group = p.H / kv_heads, splits = num_splits(p);
  AttentionPlan plan{};
  plan.group = (int32_t)group;
  plan.prefill = p.M * group > 16 * p.B;
  // A sequence's packed rows are a multiple of the group: this is the most that its last block
  // lacks.
  int64_t rows = plan.prefill ? 64 : 16, sequences = p.B < p.M ? p.B : p.M;
  int64_t lacking = rows - greatest_common_divisor(rows, group);
  plan.blocks = (p.M * group + sequences * lacking) / rows;
  if (plan.blocks == 0) plan.blocks = 1;  // somebody must clear the rows
  plan.parts = kEnoughBlocks / (plan.blocks * kv_heads);
  if (plan.parts > splits) plan.parts = splits;
  if (plan.parts < 1 || num_floats(p, splits) > floats) plan.parts = 1;
  plan.slots = plan.parts > 1 ? splits : splits > 1 ? 1 : 0;
  return plan;
}

// Rows of no sequence give 0 too.
template <int kDim>
__device__ void clear_strays(const TreeAttentionParams& p, const AttentionPlan& plan) {
  int64_t width = (int64_t)plan.group * kDim, begin = p.qo_indptr[0], end = p.qo_indptr[p.B];
  for (int64_t row = blockIdx.x; row < p.M; row += gridDim.x)
    if (row < begin || row >= end)
      for (int64_t d = threadIdx.x * 2; d < width; d += kThreads * 2)
        store_output(p, row * p.H * kDim + blockIdx.y * width + d, 0.0f, 0.0f);
}

template <int kDim, int kRowWarps>
__global__ void __launch_bounds__(kThreads, 2) attend(TreeAttentionParams p, AttentionPlan plan) {
  using L = AttentionLayout<kDim, kRowWarps>;
  SPECFAST_DYNAMIC_SHARED(AttentionShared<L>, shared);
  if (plan.parts == 1) clear_strays<kDim>(p, plan);
  RowBlock block = find_rows<L::kRows>(p, plan.group, blockIdx.x);
  if (block.count == 0) return;
  if (threadIdx.x < L::kRows)
    shared->rows[threadIdx.x] = packed_row(p, block, plan.group, threadIdx.x);
  __syncthreads();
  AttentionBlock<L>(p, plan, block, *shared).run(blockIdx.z);
}

// The sequence that a row belongs to, or -1; by a whole warp.
__device__ int64_t sequence_of(const TreeAttentionParams& p, int64_t row) {
  int64_t before = -1;
  for (int64_t first = 0; first <= p.B; first += 32) {
    int64_t b = first + threadIdx.x % 32;
    before += __popc(__ballot_sync(kFullMask, b <= p.B && p.qo_indptr[b] <= row));
  }
  return before < p.B ? before : -1;
}

// A warp a row and head: the states of its splits in order.
template <int kDim>
__global__ void __launch_bounds__(kThreads) fold_splits(TreeAttentionParams p, AttentionPlan plan) {
  constexpr int kPairs = kDim / 64;  // of dimensions a lane
  int64_t index = (int64_t)blockIdx.x * kWarps + threadIdx.x / 32;
  if (index >= p.M * p.H) return;
  int64_t row = index / p.H, b = sequence_of(p, row);
  int first = threadIdx.x % 32 * 2;
  Span span = b < 0 ? Span{0, 0} : visible_to(p, b, row);
  const float* state = state_at<kDim>(p, plan, row, index % p.H, 0);
  float o[2 * kPairs] = {}, l = 0.0f, m = kNoScore;
#pragma unroll 4
  for (int64_t s = span.begin / kSplit; s * kSplit < span.end; s++, state += kDim + kStateTail) {
    FoldScales by = fold_scales(m, state[kDim + 1]);
#pragma unroll
    for (int i = 0; i < 2 * kPairs; i++)
      o[i] = o[i] * by.total + state[i / 2 * 64 + first + i % 2] * by.split;
    l = l * by.total + state[kDim] * by.split;
  }
#pragma unroll
  for (int i = 0; i < kPairs; i++)
    store_output(p, index * kDim + i * 64 + first, normalised(o[2 * i], l),
                 normalised(o[2 * i + 1], l));
}

template <int kDim, int kRowWarps>
void launch_attend(const TreeAttentionParams& p, const AttentionPlan& plan, Stream stream) {
  constexpr size_t kBytes = sizeof(AttentionShared<AttentionLayout<kDim, kRowWarps>>);
  static_assert(kBytes <= 113 << 10, "two blocks share the 228 KiB of an SM");
  dim3 grid((unsigned)plan.blocks, (unsigned)p.cache.num_kv_heads, (unsigned)plan.parts);
  SPECFAST_LAUNCH((attend<kDim, kRowWarps>), grid, kThreads, kBytes, stream, p, plan);
}

template <int kDim>
void launch(const TreeAttentionParams& p, const AttentionPlan& plan, Stream stream) {
  if (plan.prefill)
    launch_attend<kDim, 4>(p, plan, stream);
  else
    launch_attend<kDim, 1>(p, plan, stream);
  if (plan.parts == 1) return;
  dim3 grid((unsigned)ceil_div(p.M * p.H, kWarps));
  SPECFAST_LAUNCH(fold_splits<kDim>, grid, kThreads, 0, stream, p, plan);
}

void check_cache(const TreeAttentionParams& p) {
  const KvLayer& cache = p.cache;
  require(cache.dtype == DType::bf16, "kv_cache: must be bfloat16 on CUDA");
  require(cache.head_dim == 64 || cache.head_dim == 128,
          "kv_cache: head_dim must be 64 or 128 on CUDA, got " + std::to_string(cache.head_dim));
  require(cache.num_blocks * cache.block_size <= kMostSlots,
          "kv_cache: must have at most 2^30 slots on CUDA");
  require(p.max_blocks * cache.block_size <= kMostSlots,
          "block_tables: must hold at most 2^30 positions on CUDA");
  require(is_aligned(cache.data), "kv_cache: must be 16-byte aligned");
}

}  // namespace

WorkspaceFloats tree_attention_workspace(const TreeAttentionParams& p) {
  return {num_floats(p, make_plan(p, kMostFloats).slots), num_floats(p, make_plan(p, 0).slots)};
}

void tree_attention(const TreeAttentionParams& p, Stream stream) {
  if (p.M == 0) return;
  check_cache(p);
  int64_t chunk = 16 / (p.dtype == DType::bf16 ? 2 : 4);
  require(is_aligned(p.q) && p.q_stride % chunk == 0,
          "q: rows must be 16-byte aligned (call .clone())");
  require(is_aligned(p.out), "out: must be 16-byte aligned");
  AttentionPlan plan = make_plan(p, p.workspace_floats);
  int64_t least = num_floats(p, plan.slots);
  require(p.workspace_floats >= least,
          "workspace: must have at least " + std::to_string(4 * least) + " bytes");
  if (p.cache.head_dim == 64)
    launch<64>(p, plan, stream);
  else
    launch<128>(p, plan, stream);
}

}  // namespace specfast::cuda
