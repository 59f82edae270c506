#include "draft_trees.h"
#include "kernels.h"

namespace specfast::bind {

void accept_path(const Tensor& tokens, const Tensor& row_status, const Tensor& row_base,
                 const Tensor& draft_tokens, const Tensor& parents, const Tensor& lengths,
                 Tensor path, Tensor num_accepted, Tensor next_tokens, Tensor status) {
  AcceptPathParams p{};
  p.tokens = i32_in(tokens, "tokens", {-1});
  draft_trees(row_status, row_base, draft_tokens, parents, lengths, path, num_accepted, next_tokens,
              status, tokens.size(0), p);
  cpu::accept_path(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) { m.impl("accept_path", TORCH_BOX(&accept_path)); }

}  // namespace specfast::bind
