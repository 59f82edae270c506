#include "core/tree.h"
#include "kernels.h"

namespace specfast::cpu {
namespace {

void walk(const AcceptPathParams& p, int64_t b) {
  int32_t* path = p.path + b * p.N;
  int64_t root = p.row_base[b];
  int32_t length = p.lengths[b], accepted = 0, status = 0, next = -1;
  if (root >= 0) {
    int32_t node = -1;
    for (;;) {
      int64_t row = root + 1 + node;
      next = p.tokens[row];
      status |= p.row_status[row];
      int32_t child = next < 0 ? -1
                               : matching_child(p.draft_tokens + b * p.N, p.parents + b * p.N,
                                                length, node, next);
      if (child < 0) break;
      path[accepted++] = node = child;
    }
  }
  for (int64_t j = accepted; j < p.N; j++) path[j] = -1;
  p.num_accepted[b] = accepted;
  p.next_tokens[b] = next;
  p.status[b] = status;
}

}  // namespace

void accept_path(const AcceptPathParams& p, ParallelFor parallel_for) {
  parallel_for(p.B, 64, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; b++) walk(p, b);
  });
}

}  // namespace specfast::cpu
