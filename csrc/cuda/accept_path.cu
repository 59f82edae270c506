#include "core/tree.h"
#include "cuda/launch.cuh"

namespace specfast::cuda {
namespace {

constexpr int kWarps = 4;

// Nobody has looked at these values: a tree that reaches past its arrays has no rows.
__device__ bool has_rows(const AcceptPathParams& p, int64_t b) {
  int64_t root = p.row_base[b], length = p.lengths[b];
  return root >= 0 && length <= p.N && root + (length > 0 ? length : 0) < p.num_rows;
}

// A warp a sequence, a lane a node. Parents come before their children, so one pass over the nodes,
// 32 at a time, meets the lowest matching child of every node of the path.
__global__ void __launch_bounds__(kWarps * 32) accept_path_kernel(AcceptPathParams p) {
  int64_t b = (int64_t)blockIdx.x * kWarps + threadIdx.x / 32;
  if (b >= p.B) return;
  int32_t lane = threadIdx.x % 32, accepted = 0, status = 0, next = -1;
  int32_t* path = p.path + b * p.N;
  if (has_rows(p, b)) {
    const int32_t* tokens = p.tokens + p.row_base[b] + 1;  // of node i's row; -1: the root's
    const int32_t* row_status = p.row_status + p.row_base[b] + 1;
    int32_t length = p.lengths[b], last = -1;
    status = row_status[last];
    for (int32_t first = 0; first < length; first += 32) {
      int32_t node = first + lane, parent = node;
      bool matches = false;
      if (node < length) {
        int32_t token = p.draft_tokens[b * p.N + node];
        parent = p.parents[b * p.N + node];
        matches = token >= 0 && parent >= -1 && parent < node && tokens[parent] == token;
      }
      while (unsigned children = __ballot_sync(kFullMask, matches && parent == last)) {
        last = first + first_node(children);
        status |= row_status[last];
        if (lane == 0) path[accepted] = last;
        accepted++;
      }
    }
    next = tokens[last];
  }
  for (int64_t j = accepted + lane; j < p.N; j += 32) path[j] = -1;
  if (lane > 0) return;
  p.num_accepted[b] = accepted;
  p.next_tokens[b] = next;
  p.status[b] = status;
}

}  // namespace

void accept_path(const AcceptPathParams& p, Stream stream) {
  SPECFAST_LAUNCH(accept_path_kernel, (unsigned)ceil_div(p.B, kWarps), kWarps * 32, 0, stream, p);
}

}  // namespace specfast::cuda
