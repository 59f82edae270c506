// Token Recycling's memory: for each token, what the target found likeliest behind it last time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/draft_tree.h"

namespace specfast {

// 8 bytes a token of the vocabulary and successor kept.
class Adjacency {
 public:
  Adjacency(int64_t vocab_size, int width);

  int64_t vocab_size() const { return vocab_size_; }
  int width() const { return width_; }

  // Replaces a token's successors by the target's likeliest: ids [count], -1 past the end, best
  // first, with their logits.
  void replace(int32_t token, const int32_t* ids, const float* logits, int count);

  // Puts each token's follower in a text in front of its successors.
  void follow(const int32_t* tokens, size_t count);

  // A tree over the successors of successors, without nodes that are reached less often than floor.
  DraftTree draft(int32_t root, int max_depth, int max_nodes, float floor,
                  const DrawLaw& law) const;

  void clear();

 private:
  void put_first(int32_t token, int32_t follower);
  void check(int32_t token) const;

  int64_t vocab_size_;
  int width_;
  std::vector<int32_t> ids_;   // [vocab, width], -1: none
  std::vector<float> logits_;  // [vocab, width]
};

}  // namespace specfast
