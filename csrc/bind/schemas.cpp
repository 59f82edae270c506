// Every op's schema, in one place. All are out-variants: they mutate what they say and return
// nothing.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(specfast, m) {
  m.def("linear(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor(a!) out) -> ()");
  m.def(
      "rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps, Tensor(a!) out, "
      "Tensor(b!)? sum_out) -> ()");
  m.def("silu_mul(Tensor gate_up, Tensor(a!) out) -> ()");
  m.def(
      "rope_kv_append(Tensor qkv, Tensor cos_sin, Tensor positions, Tensor slots, Tensor? q_norm, "
      "Tensor? k_norm, float eps, Tensor(a!) q_out, Tensor(b!) kv_cache, Tensor(c!) status) -> ()");
  m.def(
      "kv_append(Tensor k, Tensor v, Tensor slots, Tensor(a!) kv_cache, Tensor(b!) status) -> ()");
  m.def(
      "kv_compact(Tensor(a!) cache, Tensor block_tables, Tensor node_base, Tensor path, "
      "Tensor num_accepted) -> ()");
  m.def(
      "tree_attention(Tensor q, Tensor kv_cache, Tensor block_tables, Tensor qo_indptr, "
      "Tensor node_base, Tensor kv_start, Tensor positions, Tensor node_bits, float scale, "
      "int window, float soft_cap, Tensor(a!) out, Tensor(b!)? workspace=None) -> ()");
  m.def(
      "decoder_layers(Tensor(a!)[] scratch, Tensor?[] weights, Tensor(b!)[] rows, "
      "Tensor(c!)[] kv_caches, int[] windows, float eps, float scale) -> ()");
  m.def(
      "sample_rows(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
      "Tensor seeds, Tensor positions, Tensor(a!) tokens, Tensor(b!) status, "
      "Tensor(c!)? logprob_ids, Tensor(d!)? logprobs, Tensor(e!)? workspace=None) -> ()");
  m.def(
      "rank_candidates(Tensor logits, Tensor? d2t, Tensor temperature, Tensor seeds, "
      "Tensor positions, Tensor(a!) ids, Tensor(b!) scores, Tensor(c!)? workspace=None) -> ()");
  m.def(
      "draw_candidates(Tensor logits, Tensor? d2t, Tensor temperature, Tensor top_k, Tensor top_p, "
      "Tensor min_p, Tensor seeds, Tensor positions, Tensor nodes, Tensor roots, Tensor(a!) ids, "
      "Tensor(b!) laws, Tensor(c!)? workspace=None) -> ()");
  m.def(
      "accept_path(Tensor tokens, Tensor row_status, Tensor row_base, Tensor draft_tokens, "
      "Tensor parents, Tensor lengths, Tensor(a!) path, Tensor(b!) num_accepted, "
      "Tensor(c!) next_tokens, Tensor(d!) status) -> ()");
  m.def(
      "rejection_sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, "
      "Tensor min_p, Tensor seeds, Tensor positions, Tensor row_status, Tensor row_base, "
      "Tensor roots, Tensor draft_tokens, Tensor parents, Tensor lengths, Tensor? draft_laws, "
      "Tensor? law_row, Tensor? vocab_map, bool by_token, Tensor(a!) path, "
      "Tensor(b!) num_accepted, Tensor(c!) next_tokens, Tensor(d!) status, Tensor(e!)? "
      "workspace=None) -> ()");
  m.def(
      "typical_sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
      "Tensor seeds, Tensor positions, Tensor row_status, Tensor row_base, Tensor draft_tokens, "
      "Tensor parents, Tensor lengths, float threshold, float alpha, Tensor(a!) path, "
      "Tensor(b!) num_accepted, Tensor(c!) next_tokens, Tensor(d!) status, Tensor(e!)? "
      "workspace=None) -> ()");
  m.def("sample_rows_workspace(int rows, int vocabulary, int? logprobs) -> int");
  m.def("rank_candidates_workspace(int rows, int vocabulary, int m) -> int");
  m.def("draw_candidates_workspace(int rows, int vocabulary, int m) -> int");
  m.def(
      "rejection_sample_workspace(int rows, int vocabulary, int sequences, int laws, "
      "int law_vocabulary) -> int");
  m.def("typical_sample_workspace(int rows, int vocabulary, int sequences) -> int");
  m.def(
      "tree_attention_workspace(int rows, int heads, int kv_heads, int head_dim, int sequences, "
      "int context, int window) -> int");
  m.def("advise_huge_pages(Tensor(a!) t) -> bool");
  m.def("stream_read(Tensor data, Tensor(a!) sums) -> ()");
}
