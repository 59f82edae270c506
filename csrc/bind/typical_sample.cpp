#include "draft_trees.h"
#include "kernels.h"

namespace specfast::bind {

void typical_sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
                    const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
                    const Tensor& positions, const Tensor& row_status, const Tensor& row_base,
                    const Tensor& draft_tokens, const Tensor& parents, const Tensor& lengths,
                    double threshold, double alpha, Tensor path, Tensor num_accepted,
                    Tensor next_tokens, Tensor status) {
  TypicalSampleParams p{};
  logit_rows(logits, temperature, top_k, top_p, min_p, seeds, positions, p);
  draft_trees(row_status, row_base, draft_tokens, parents, lengths, path, num_accepted, next_tokens,
              status, p.R, p);
  check_nodes(p, p.V);
  p.threshold = (float)threshold, p.alpha = (float)alpha;
  cpu::typical_sample(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) {
  m.impl("typical_sample", TORCH_BOX(&typical_sample));
}

}  // namespace specfast::bind
