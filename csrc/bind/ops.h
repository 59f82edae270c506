// The doors of the ops that decoder_layers calls in turn.
#pragma once
#include "door.h"

namespace specfast::bind {

void rms_norm(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
              double eps, Tensor out, const std::optional<Tensor>& sum_out);
void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& residual, Tensor out);
void rope_kv_append(const Tensor& qkv, const Tensor& cos_sin, const Tensor& positions,
                    const Tensor& slots, const std::optional<Tensor>& q_norm,
                    const std::optional<Tensor>& k_norm, double eps, Tensor q_out, Tensor kv_cache,
                    Tensor status);
void tree_attention(const Tensor& q, const Tensor& kv_cache, const Tensor& block_tables,
                    const Tensor& qo_indptr, const Tensor& node_base, const Tensor& kv_start,
                    const Tensor& positions, const Tensor& node_bits, double scale, int64_t window,
                    double soft_cap, Tensor out, const std::optional<Tensor>& workspace);
void silu_mul(const Tensor& gate_up, Tensor out);

}  // namespace specfast::bind
