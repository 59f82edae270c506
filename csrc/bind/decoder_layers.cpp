// All layers of a decoder in one call: nine ops a layer are 270 calls a step, and a call from
// Python costs as much as a small op. Every op still checks its tensors and names them.
#include <vector>

#include "ops.h"

namespace specfast::bind {
namespace {

// The field orders of Scratch, LayerWeights and Rows in specfast/models.
enum Buffer { kHidden, kNormed, kQkvOut, kQ, kAttended, kAttendedRows, kGateUpOut, kActivated };
enum Weight {
  kInputNorm,
  kQkv,
  kQkvBias,
  kQNorm,
  kKNorm,
  kO,
  kOBias,
  kMlpNorm,
  kGateUp,
  kGateUpBias,
  kDown,
  kDownBias,
  kCosSin
};
enum Row {
  kTokenIds,
  kPositions,
  kSlots,
  kNodeBits,
  kStatus,
  kQoIndptr,
  kBlockTables,
  kNodeBase,
  kKvStart
};
constexpr size_t kBuffers = kActivated + 1, kWeights = kCosSin + 1, kRows = kKvStart + 1;

void run_layer(const std::vector<Tensor>& s, const std::optional<Tensor>* w,
               const std::vector<Tensor>& r, const Tensor& kv_cache, double eps, double scale,
               int64_t window) {
  rms_norm(s[kHidden], {}, *w[kInputNorm], eps, s[kNormed], {});
  linear(s[kNormed], *w[kQkv], w[kQkvBias], {}, s[kQkvOut]);
  rope_kv_append(s[kQkvOut], *w[kCosSin], r[kPositions], r[kSlots], w[kQNorm], w[kKNorm], eps,
                 s[kQ], kv_cache, r[kStatus]);
  tree_attention(s[kQ], kv_cache, r[kBlockTables], r[kQoIndptr], r[kNodeBase], r[kKvStart],
                 r[kPositions], r[kNodeBits], scale, window, 0.0, s[kAttended], {});
  linear(s[kAttendedRows], *w[kO], w[kOBias], s[kHidden], s[kHidden]);
  rms_norm(s[kHidden], {}, *w[kMlpNorm], eps, s[kNormed], {});
  linear(s[kNormed], *w[kGateUp], w[kGateUpBias], {}, s[kGateUpOut]);
  silu_mul(s[kGateUpOut], s[kActivated]);
  linear(s[kActivated], *w[kDown], w[kDownBias], s[kHidden], s[kHidden]);
}

bool is_optional(size_t weight) {
  switch (weight) {
    case kQkvBias:
    case kQNorm:
    case kKNorm:
    case kOBias:
    case kGateUpBias:
    case kDownBias:
      return true;
    default:
      return false;
  }
}

}  // namespace

void decoder_layers(std::vector<Tensor> scratch, std::vector<std::optional<Tensor>> weights,
                    std::vector<Tensor> rows, std::vector<Tensor> kv_caches,
                    std::vector<int64_t> windows, double eps, double scale) {
  size_t layers = windows.size();
  STD_TORCH_CHECK(scratch.size() == kBuffers, "scratch: must be ", kBuffers, " tensors");
  STD_TORCH_CHECK(rows.size() == kRows, "rows: must be ", kRows, " tensors");
  STD_TORCH_CHECK(weights.size() == layers * kWeights && kv_caches.size() == layers,
                  "weights, kv_caches: must hold ", kWeights, " and 1 tensors a window");
  for (size_t i = 0; i < weights.size(); i++)
    STD_TORCH_CHECK(weights[i] || is_optional(i % kWeights), "weights: entry ", i, " is missing");
  for (size_t layer = 0; layer < layers; layer++)
    run_layer(scratch, &weights[layer * kWeights], rows, kv_caches[layer], eps, scale,
              windows[layer]);
}

SPECFAST_REGISTER_CPU(decoder_layers)

}  // namespace specfast::bind
