#include "checks.h"
#include "kernels.h"

namespace specfast::bind {
namespace {

// A wrong row or length would read past the end; rows and nodes are few, so look at all of them.
void check_rows(const AcceptPathParams& p, int64_t num_rows) {
  for (int64_t b = 0; b < p.B; b++) {
    STD_TORCH_CHECK(p.lengths[b] >= 0 && p.lengths[b] <= p.N, "lengths[", b,
                    "] must be in [0, N = ", p.N, "], got ", p.lengths[b]);
    STD_TORCH_CHECK(p.row_base[b] < 0 || (int64_t)p.row_base[b] + p.lengths[b] < num_rows,
                    "row_base[", b, "] = ", p.row_base[b], " and lengths[", b, "] = ", p.lengths[b],
                    " reach past the ", num_rows, " rows of tokens");
  }
}

}  // namespace

void accept_path(const Tensor& tokens, const Tensor& row_status, const Tensor& row_base,
                 const Tensor& draft_tokens, const Tensor& parents, const Tensor& lengths,
                 Tensor path, Tensor num_accepted, Tensor next_tokens, Tensor status) {
  AcceptPathParams p{};
  p.draft_tokens = i32_in(draft_tokens, "draft_tokens", {-1, -1});
  p.B = draft_tokens.size(0), p.N = draft_tokens.size(1);
  p.parents = i32_in(parents, "parents", {p.B, p.N});
  p.lengths = i32_in(lengths, "lengths", {p.B});
  p.tokens = i32_in(tokens, "tokens", {-1});
  p.row_status = i32_in(row_status, "row_status", {tokens.size(0)});
  p.row_base = i32_in(row_base, "row_base", {p.B});
  p.path = i32_out(path, "path", {p.B, p.N});
  p.num_accepted = i32_out(num_accepted, "num_accepted", {p.B});
  p.next_tokens = i32_out(next_tokens, "next_tokens", {p.B});
  p.status = i32_out(status, "status", {p.B});
  check_rows(p, tokens.size(0));
  cpu::accept_path(p, torch_parallel_for);
}

STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) { m.impl("accept_path", TORCH_BOX(&accept_path)); }

}  // namespace specfast::bind
