// What a row of tree_attention sees: a span of logical positions, and beyond node_base the nodes of
// its own path. And the children of a node, for those who walk a draft tree.
#pragma once
#include <cstdint>

#include "core/macros.h"

namespace specfast {

constexpr int kMaxNodes = 64;  // of a draft tree

struct Span {
  int64_t begin, end;
  SPECFAST_HD bool empty() const { return begin >= end; }
  SPECFAST_HD Span within(int64_t lo, int64_t hi) const {
    return {begin > lo ? begin : lo, end < hi ? end : hi};
  }
};

// The logical positions that a row at `position` sees; none for a padding row. window 0: no window.
SPECFAST_HD Span visible(int64_t kv_start, int64_t position, int64_t window) {
  Span span{kv_start, position + 1};
  return window > 0 ? span.within(span.end - window, span.end) : span;
}

// Ancestor-or-self bits list a node's path in depth order, because a parent's index is lower than
// its child's.

SPECFAST_HD int path_length(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __popcll(bits);
#else
  return __builtin_popcountll(bits);
#endif
}

// The lowest set bit: the shallowest node of the path. bits != 0.
SPECFAST_HD int first_node(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __ffsll((long long)bits) - 1;
#else
  return __builtin_ctzll(bits);
#endif
}

// The highest set bit: the deepest node of a path. bits != 0.
SPECFAST_HD int last_node(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return 63 - __clzll((long long)bits);
#else
  return 63 - __builtin_clzll(bits);
#endif
}

// The k-th set bit, k = 0 the lowest: the ancestor at depth k. k < path_length(bits).
SPECFAST_HD int node_at_depth(uint64_t bits, int k) {
  for (; k > 0; k--) bits &= bits - 1;
  return first_node(bits);
}

// How many of its first ancestors are nodes 0, 1, 2, ...: those lie in their own slots, as the
// tokens of a plain row do. A whole chain does.
SPECFAST_HD int chain_length(uint64_t bits) { return ~bits ? first_node(~bits) : 64; }

// The lowest child of `parent` (-1: the root) among nodes [first, length), or -1.
SPECFAST_HD int32_t next_child(const int32_t* parents, int32_t length, int32_t parent,
                               int32_t first) {
  for (int32_t node = first; node < length; node++)
    if (parents[node] == parent) return node;
  return -1;
}

// The lowest child of `parent` that holds `token`, or -1.
SPECFAST_HD int32_t matching_child(const int32_t* tokens, const int32_t* parents, int32_t length,
                                   int32_t parent, int32_t token) {
  for (int32_t node = parent + 1; node < length; node++)
    if (parents[node] == parent && tokens[node] == token) return node;
  return -1;
}

}  // namespace specfast
