// Bytes of the workspace that an op needs on CUDA, by sizes alone: before the tensors are there.
#include "door.h"

namespace specfast::bind {
namespace {

// What a tensor may have of anything, so that no product of sizes overflows.
void check_size(int64_t n, const char* name, int64_t least = 0) {
  STD_TORCH_CHECK(n >= least && n <= INT32_MAX, name, ": must be ", least, " to ", INT32_MAX,
                  ", got ", n);
}

template <class Params>
Params logit_rows(int64_t rows, int64_t vocabulary) {
  check_size(rows, "rows"), check_size(vocabulary, "vocabulary", 1);
  Params p{};
  p.R = rows, p.V = vocabulary;
  return p;
}

}  // namespace

int64_t sample_rows_workspace(int64_t rows, int64_t vocabulary, std::optional<int64_t> logprobs) {
  auto p = logit_rows<SampleRowsParams>(rows, vocabulary);
  float some;
  if (logprobs) check_size(*logprobs, "logprobs"), p.L = *logprobs, p.logprobs = &some;
  return workspace_bytes(p);
}

int64_t rank_candidates_workspace(int64_t rows, int64_t vocabulary, int64_t m) {
  auto p = logit_rows<RankCandidatesParams>(rows, vocabulary);
  check_size(m, "m"), p.m = m;
  return workspace_bytes(p);
}

int64_t draw_candidates_workspace(int64_t rows, int64_t vocabulary, int64_t m) {
  auto p = logit_rows<DrawCandidatesParams>(rows, vocabulary);
  check_size(m, "m"), p.m = m;
  return workspace_bytes(p);
}

int64_t rejection_sample_workspace(int64_t rows, int64_t vocabulary, int64_t sequences,
                                   int64_t laws, int64_t law_vocabulary) {
  auto p = logit_rows<RejectionSampleParams>(rows, vocabulary);
  check_size(sequences, "sequences"), check_size(laws, "laws");
  check_size(law_vocabulary, "law_vocabulary");
  p.B = sequences, p.num_laws = laws, p.law_vocab = law_vocabulary;
  float some_law;
  int32_t some_map;
  if (laws) p.laws = &some_law, p.vocab_map = &some_map;
  return workspace_bytes(p);
}

int64_t typical_sample_workspace(int64_t rows, int64_t vocabulary, int64_t sequences) {
  auto p = logit_rows<TypicalSampleParams>(rows, vocabulary);
  check_size(sequences, "sequences"), p.B = sequences;
  return workspace_bytes(p);
}

int64_t tree_attention_workspace(int64_t rows, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                 int64_t sequences, int64_t context, int64_t window) {
  check_size(rows, "rows"), check_size(heads, "heads", 1), check_size(kv_heads, "kv_heads", 1);
  check_size(head_dim, "head_dim", 1), check_size(sequences, "sequences");
  check_size(context, "context"), check_size(window, "window");
  check_size(rows * heads, "rows * heads");
  STD_TORCH_CHECK(heads % kv_heads == 0, "heads: must be a multiple of the ", kv_heads,
                  " of the cache, got ", heads);
  STD_TORCH_CHECK(head_dim <= kMaxHeadDim, "head_dim: must be at most ", kMaxHeadDim, ", got ",
                  head_dim);
  TreeAttentionParams p{};
  p.M = rows, p.H = heads, p.B = sequences, p.window = window;
  p.max_blocks = context, p.cache.block_size = 1;
  p.cache.num_kv_heads = kv_heads, p.cache.head_dim = head_dim;
  return workspace_bytes(p);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CompositeExplicitAutograd, m) {
  m.impl("sample_rows_workspace", TORCH_BOX(&sample_rows_workspace));
  m.impl("rank_candidates_workspace", TORCH_BOX(&rank_candidates_workspace));
  m.impl("draw_candidates_workspace", TORCH_BOX(&draw_candidates_workspace));
  m.impl("rejection_sample_workspace", TORCH_BOX(&rejection_sample_workspace));
  m.impl("typical_sample_workspace", TORCH_BOX(&typical_sample_workspace));
  m.impl("tree_attention_workspace", TORCH_BOX(&tree_attention_workspace));
}

}  // namespace specfast::bind
