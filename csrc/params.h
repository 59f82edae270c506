// One plain struct an op. No torch, no CUDA. Sizes are elements; strides are elements; -1 is
// padding. Every pointer says its [shape]. Rows of a 2-D input may be strided, their elements are
// dense.
#pragma once
#include <cstdint>

namespace specfast {

enum class DType : int { f32 = 0, bf16 = 1 };

// Columns of a packed weight panel: panel p holds output columns [32 p, 32 p + 32).
constexpr int64_t kPanel = 32;

// The widest head of any op.
constexpr int64_t kMaxHeadDim = 256;

// Bits of a row's status word.
enum RowStatus : int32_t {
  kRowOk = 0,
  kRowNonFiniteKv = 1,  // a K or V element was NaN or infinite and was stored as 0
  kRowNan = 2,          // a logit was NaN
  kRowNoSupport = 4,    // every logit was -inf
};

// out = x @ W^T (+ bias) (+ residual), each element accumulated over k = 0..K-1 in order with fma.
struct LinearParams {
  const float* x;         // [M, K], rows x_stride apart
  const void* weight;     // packed [ceil(N / 32), K, 32] of weight_dtype, see ops.pack_linear
  const float* bias;      // [N] or null
  const float* residual;  // [M, N], rows residual_stride apart, or null
  float* out;             // [M, N], rows out_stride apart
  int64_t M, N, K, x_stride, residual_stride, out_stride;
  DType weight_dtype;
};

// h = x (+ residual); out = h / sqrt(mean(h^2) + eps) * weight; sum_out = h.
struct RmsNormParams {
  const float* x;         // [M, D], rows x_stride apart
  const float* residual;  // [M, D] or null
  const float* weight;    // [D]
  float* out;             // [M, D]
  float* sum_out;         // [M, D] or null
  int64_t M, D, x_stride;
  float eps;
  DType dtype = DType::f32;  // of x, residual, out and sum_out; CPU: f32 only
};

// out = silu(gate) * up.
struct SiluMulParams {
  const float* gate_up;  // [M, 2 F]: gate, then up
  float* out;            // [M, F]
  int64_t M, F;
  DType dtype = DType::f32;  // of gate_up and out; CPU: f32 only
};

// One layer of a paged cache: K then V.
struct KvLayer {
  void* data;  // [2, num_blocks, block_size, num_kv_heads, head_dim] of dtype
  int64_t num_blocks, block_size, num_kv_heads, head_dim;
  DType dtype;
};

// Optional q/k norm and rotary embedding, then K and V into their slots, then q out.
struct RopeKvAppendParams {
  const float* qkv;          // [M, (H + 2 Hkv) D], rows qkv_stride apart: q, k, v
  const float* cos_sin;      // [P, R]: cos of R / 2 angles, then sin; R = 0: no rotary
  const int32_t* positions;  // [M] depth position of each row; -1: padding, q_out is 0
  const int64_t* slots;      // [M] block * block_size + offset; -1: store nothing
  const float* q_norm;       // [D] or null
  const float* k_norm;       // [D] or null
  float* q_out;              // [M, H, D]
  int32_t* status;           // [M] kRowNonFiniteKv is or-ed in
  KvLayer cache;
  int64_t M, H, num_positions, rotary_dim, qkv_stride;
  float eps;
  DType dtype = DType::f32;  // of qkv and q_out; CPU: f32 only
};

struct KvAppendParams {
  const float* k;        // [M, Hkv, D], rows k_stride apart
  const float* v;        // [M, Hkv, D], rows v_stride apart
  const int64_t* slots;  // [M]
  int32_t* status;       // [M]
  KvLayer cache;
  int64_t M, k_stride, v_stride;
  DType dtype = DType::f32;  // of k and v; CPU: f32 only
};

// Moves node path[b, j] of sequence b from logical slot node_base[b] + path[b, j] to node_base[b] +
// j. path[b, :] increases and path[b, j] >= j, so the move is in place.
struct KvCompactParams {
  void* cache;                  // [layers, 2, num_blocks, block_size, Hkv, D]
  const int32_t* block_tables;  // [B, max_blocks]
  const int32_t* node_base;     // [B] logical slot of node 0
  const int32_t* path;          // [B, N]
  const int32_t* num_accepted;  // [B]
  int64_t layers, num_blocks, block_size, token_bytes;  // token_bytes = Hkv * D * element size
  int64_t B, N, max_blocks;
};

// DESIGN section 7. A row sees logical positions [max(kv_start, positions + 1 - window),
// positions]. Position p < node_base lies in its own slot; p >= node_base in the slot of the row's
// ancestor at depth p - node_base, which is node (p - node_base)-th set bit of node_bits, at
// node_base + node.
struct TreeAttentionParams {
  const float* q;               // [M, H, D], rows q_stride apart
  const int32_t* block_tables;  // [B, max_blocks]
  const int32_t* qo_indptr;     // [B + 1] rows of sequence b are [qo_indptr[b], qo_indptr[b + 1])
  const int32_t* node_base;     // [B]
  const int32_t* kv_start;      // [B] first valid logical position
  const int32_t* positions;     // [M] logical position of the row; -1: padding, out is 0
  const int64_t* node_bits;     // [M] ancestor-or-self bits; 0 for a row that is no node
  float* out;                   // [M, H, D]
  KvLayer cache;
  int64_t B, M, H, max_blocks, q_stride;
  int64_t window;            // 0: none
  float scale, soft_cap;     // soft_cap 0: none
  DType dtype = DType::f32;  // of q and out; CPU: f32 only
  // CUDA, see cuda::tree_attention_workspace; 16-byte aligned.
  float* workspace = nullptr;  // [workspace_floats]
  int64_t workspace_floats = 0;
};

// DESIGN section 7. Rows of logits and how each is drawn from; all scalars a row.
struct LogitRows {
  const float* logits;       // [R, V], rows logits_stride apart
  const float* temperature;  // [R] < 1e-5: greedy
  const int32_t* top_k;      // [R] <= 0: off
  const float* top_p;        // [R] >= 1: off
  const float* min_p;        // [R] <= 0: off
  const int64_t* seeds;      // [R] the bits of a uint64
  const int32_t* positions;  // [R] absolute position of the token being decided
  int64_t R, V, logits_stride;
  DType dtype = DType::f32;   // of logits; CPU: f32 only
  void* workspace = nullptr;  // CUDA: cuda::workspace_bytes(p), 16-byte aligned, of any content
};

// One token a row.
struct SampleRowsParams : LogitRows {
  int32_t* tokens;       // [R] -1 where status is set
  int32_t* status;       // [R] kRowNan, kRowNoSupport
  int32_t* logprob_ids;  // [R, 1 + L] the chosen token, then the L likeliest; or null
  float* logprobs;       // [R, 1 + L] of the logits as given (T = 1, no filter); or null
  int64_t L;
};

struct RankCandidatesParams {
  const float* logits;       // [R, V], rows logits_stride apart (V: the draft vocabulary)
  const int32_t* d2t;        // [V] target id of each draft id, or null (the same)
  const float* temperature;  // [R]
  const int64_t* seeds;      // [R]
  const int32_t* positions;  // [R] absolute position of the candidate
  int32_t* ids;              // [R, m] target ids, best first; -1 past the end
  float* scores;             // [R, m] z + G (greedy: the logits); -inf past the end
  int64_t R, V, m, logits_stride;
  DType dtype = DType::f32;   // as LogitRows'
  void* workspace = nullptr;  // as LogitRows'
};

// m tokens a row of draft logits (V: the draft vocabulary), without replacement, by noise that is
// nobody else's.
struct DrawCandidatesParams : LogitRows {
  const int32_t* d2t;    // [V] target id of each draft id, or null (the same)
  const int32_t* nodes;  // [R] the node whose children are drawn; -1: the root
  const int32_t* roots;  // [R] absolute position of the step's first undecided token
  int32_t* ids;          // [R, m] target ids, in the order drawn; -1 past the end
  float* laws;           // [R, V] logits at temperature 1 of the law; greedy: the logits
  int64_t m;
};

// Draft trees in, of each the accepted path out.
struct DraftTrees {
  const int32_t* row_status;    // [num_rows]
  const int32_t* row_base;      // [B] row of the root; node i is row_base + 1 + i; -1: no rows
  const int32_t* draft_tokens;  // [B, N]
  const int32_t* parents;       // [B, N]
  const int32_t* lengths;       // [B]
  int32_t* path;                // [B, N] accepted nodes, then -1
  int32_t* num_accepted;        // [B]
  int32_t* next_tokens;         // [B] -1: none
  int32_t* status;              // [B] or of the rows on the path and its last row
  int64_t B, N, num_rows;
};

struct AcceptPathParams : DraftTrees {
  const int32_t* tokens;  // [num_rows] the target's decision a row
};

// p/q rejection. by_token: from the root on, node by node; else from the leaves (block, traversal).
// A node with a law was drawn from it less its earlier siblings' tokens.
struct RejectionSampleParams : LogitRows, DraftTrees {
  const int32_t* roots;      // [B] absolute position of the step's first undecided token
  const float* laws;         // [num_laws, law_vocab] logits at temperature 1; or null
  const int32_t* law_row;    // [B, N] -1: a point mass; null: all are
  const int32_t* vocab_map;  // [law_vocab] target ids, all different, or null (the same)
  int64_t num_laws, law_vocab;
  bool by_token;
};

// Accepts what is likely enough, p >= min(threshold, alpha exp(-H)): not the target's law.
struct TypicalSampleParams : LogitRows, DraftTrees {
  float threshold, alpha;
};

// Sums memory with every thread: the streaming read that bandwidth shares refer to.
struct StreamReadParams {
  const int32_t* data;  // [chunks, 1024]
  int32_t* sums;        // [chunks]
  int64_t chunks;
};

}  // namespace specfast
