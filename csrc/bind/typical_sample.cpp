#include "draft_trees.h"

namespace specfast::bind {

void typical_sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
                    const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
                    const Tensor& positions, const Tensor& row_status, const Tensor& row_base,
                    const Tensor& draft_tokens, const Tensor& parents, const Tensor& lengths,
                    double threshold, double alpha, Tensor path, Tensor num_accepted,
                    Tensor next_tokens, Tensor status, const std::optional<Tensor>& workspace) {
  Door door;
  TypicalSampleParams p{};
  logit_rows(door, logits, temperature, top_k, top_p, min_p, seeds, positions, p);
  draft_trees(door, row_status, row_base, draft_tokens, parents, lengths, path, num_accepted,
              next_tokens, status, p.R, p);
  check_nodes(door, p, p.V);
  p.threshold = (float)threshold, p.alpha = (float)alpha;
  p.workspace = door.workspace(workspace, workspace_bytes(p));
  door.run(p, SPECFAST_LAUNCHERS(typical_sample));
}

SPECFAST_REGISTER(typical_sample)

}  // namespace specfast::bind
