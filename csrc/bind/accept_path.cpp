#include "draft_trees.h"

namespace specfast::bind {

void accept_path(const Tensor& tokens, const Tensor& row_status, const Tensor& row_base,
                 const Tensor& draft_tokens, const Tensor& parents, const Tensor& lengths,
                 Tensor path, Tensor num_accepted, Tensor next_tokens, Tensor status) {
  Door door;
  AcceptPathParams p{};
  p.tokens = door.i32_in(tokens, "tokens", {-1});
  draft_trees(door, row_status, row_base, draft_tokens, parents, lengths, path, num_accepted,
              next_tokens, status, tokens.size(0), p);
  door.run(p, SPECFAST_LAUNCHERS(accept_path));
}

SPECFAST_REGISTER(accept_path)

}  // namespace specfast::bind
