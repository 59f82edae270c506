#include "host/adjacency.h"

#include <algorithm>
#include <stdexcept>

namespace specfast {
namespace {

// A successor's share was the target's behind another text. Behind this one it holds so often:
// found on answers of the demo model to training prompts, where it is even from 0.1 to 0.9.
float acceptance(float share, const DrawLaw& law) { return (law.greedy() ? 0.6f : 0.42f) * share; }

}  // namespace

Adjacency::Adjacency(int64_t vocab_size, int width) : vocab_size_(vocab_size), width_(width) {
  if (vocab_size < 1 || width < 1) throw std::invalid_argument("need vocab_size and width >= 1");
  ids_.assign(vocab_size * width, -1);
  logits_.assign(vocab_size * width, 0.0f);
}

void Adjacency::check(int32_t token) const {
  if (token < 0 || token >= vocab_size_) throw std::out_of_range("a token past the vocabulary");
}

void Adjacency::replace(int32_t token, const int32_t* ids, const float* logits, int count) {
  check(token);
  int32_t* own = &ids_[token * (int64_t)width_];
  float* own_logits = &logits_[token * (int64_t)width_];
  std::fill_n(own, width_, -1);
  for (int i = 0, n = 0; i < count && n < width_; i++) {
    // A row whose logits are no numbers teaches nothing.
    if (ids[i] < 0 || ids[i] >= vocab_size_ || !std::isfinite(logits[i])) continue;
    own[n] = ids[i];
    own_logits[n++] = logits[i];
  }
}

void Adjacency::follow(const int32_t* tokens, size_t count) {
  for (size_t i = 1; i < count; i++) put_first(tokens[i - 1], tokens[i]);
}

void Adjacency::put_first(int32_t token, int32_t follower) {
  check(token);
  check(follower);
  int32_t* own = &ids_[token * (int64_t)width_];
  float* own_logits = &logits_[token * (int64_t)width_];
  const float best = own[0] < 0 ? 0.0f : own_logits[0];
  const int found = static_cast<int>(std::find(own, own + width_, follower) - own);
  const int last = std::min(found, width_ - 1);
  std::copy_backward(own, own + last, own + last + 1);
  std::copy_backward(own_logits, own_logits + last, own_logits + last + 1);
  own[0] = follower;
  own_logits[0] = best;
}

DraftTree Adjacency::draft(int32_t root, int max_depth, int max_nodes, float floor,
                           const DrawLaw& law) const {
  check(root);
  std::vector<float> shares;
  return grow_best_first(root, max_depth, max_nodes, floor,
                         [&](int32_t token, int depth, auto&& give) {
                           const int32_t* ids = &ids_[token * (int64_t)width_];
                           const float* logits = &logits_[token * (int64_t)width_];
                           const auto count = std::find(ids, ids + width_, -1) - ids;
                           shares.assign(logits, logits + count);
                           to_shares(shares, ids, law, depth);
                           for (int i = 0; i < count; i++)
                             give(ids[i], acceptance(shares[i], law), ids[i]);
                         });
}

void Adjacency::clear() { std::fill(ids_.begin(), ids_.end(), -1); }

}  // namespace specfast
