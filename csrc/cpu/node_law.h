// The target's law at a node, and what is left of it as the node's children are rejected. A law is
// float weights in [0, 1] over the target's vocabulary with their integer total, sum of
// floor(weight 2^40), so that no sum depends on its order.
#pragma once
#include "cpu/draft_tree.h"

namespace specfast::cpu::SPECFAST_TIER {

// Total of tokens [begin, end); weights_at(i, left) gives those of i .. i + 15, 0 for lanes >=
// left.
template <class WeightsAt>
SPECFAST_INLINE uint64_t total_mass(int64_t begin, int64_t end, WeightsAt weights_at) {
  uint64_t total = 0;
  for (int64_t slice = begin; slice < end; slice += kSlice) {
    int64_t stop = slice + kSlice < end ? slice + kSlice : end;
    MassSum sum;
    for (int64_t i = slice; i < stop; i += 16) sum.add(weights_at(i, stop - i));
    total += sum.total();
  }
  return total;
}

// What a draft was drawn from: a row of logits at temperature 1, less its earlier siblings' tokens.
// A point mass where there is no row, or no mass at the draft: then it can't have been drawn.
struct DraftLaw {
  const float* z = nullptr;  // [vocab]
  int64_t vocab = 0;
  const int32_t* map = nullptr;       // [vocab] target ids, or null (the same)
  float top = 0.0f, exponent = 0.0f;  // largest z that is left
  uint64_t total = 0;

  int32_t index_of(int32_t token) const {
    if (!map) return token < vocab ? token : -1;
    for (int64_t i = 0; i < vocab; i++)
      if (map[i] == token) return (int32_t)i;
    return -1;
  }
  F32x16 z_at(int64_t i, int64_t left) const {
    return tempered(load_or(z + i, left, -kInfinity), broadcast(1.0f));
  }
  F32x16 weights_at(int64_t i, int64_t left) const {
    return weight(min(z_at(i, left), broadcast(top)), broadcast(exponent));
  }
  // body(begin, end) for the runs of tokens between those excluded (sorted).
  template <class Body>
  void each_run(const int32_t* excluded, int count, const Body& body) const {
    int64_t begin = 0;
    for (int i = 0; i < count; i++) {
      body(begin, (int64_t)excluded[i]);
      begin = (int64_t)excluded[i] + 1;
    }
    body(begin, vocab);
  }
  // Called once. Scaled to the largest that is left: the rest of a peaked law is far below its
  // peak.
  void exclude(const int32_t* excluded, int count) {
    F32x16 largest = broadcast(-kInfinity);
    each_run(excluded, count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += 16) largest = max(z_at(i, end - i), largest);
    });
    top = reduce_max(largest);
    if (top == -kInfinity) return;
    exponent = row_exponent(top);
    total = 0;
    each_run(excluded, count, [&](int64_t begin, int64_t end) {
      total += total_mass(begin, end, [&](int64_t i, int64_t left) { return weights_at(i, left); });
    });
  }
  double share(int32_t token) const {
    int32_t i = z && total ? index_of(token) : -1;
    if (i < 0) return 0.0;
    return (double)weight(specfast::min(tempered(z[i], 1.0f), top), exponent) * 0x1p40 /
           (double)(int64_t)total;
  }
};

struct NodeLaw {
  const RowLaw* row = nullptr;
  const float* logits = nullptr;  // [vocab]
  int64_t vocab = 0;
  float* room = nullptr;  // [vocab, up to a multiple of 16] for weights of its own, or null
  uint64_t total = 0;
  bool is_own = false;       // the weights are those in `room`, not the row's
  bool is_residual = false;  // some child was rejected
  int num_taken = 0;         // point masses that were rejected of the row's law
  int32_t taken[kMaxNodes];

  F32x16 row_weights(int64_t i) const {
    return weight(supported_z(*row, logits, i, vocab), broadcast(row->scale.exponent));
  }
  void measure_row() {
    total = total_mass(0, vocab, [&](int64_t i, int64_t) { return row_weights(i); });
  }
  bool is_taken(int32_t token) const {
    for (int i = 0; i < num_taken; i++)
      if (taken[i] == token) return true;
    return false;
  }
  float weight_of(int32_t token) const {
    if (is_own) return room[token];
    float z = tempered(logits[token], row->scale.temperature);
    if (!row->support.holds(z, token) || is_taken(token)) return 0.0f;
    return weight(z, row->scale.exponent);
  }
  double share(int32_t token) const {
    return total ? (double)weight_of(token) * 0x1p40 / (double)(int64_t)total : 0.0;
  }
  // p less a rejected point mass; returns its mass, of 1.
  double take(int32_t token) {
    double before = (double)(int64_t)total;
    total -= mass(weight_of(token));
    if (is_own)
      room[token] = 0.0f;
    else
      taken[num_taken++] = token;
    is_residual = true;
    return (double)(int64_t)total / before;
  }
  // [scale p - q]+; returns its mass.
  double subtract(double scale, const DraftLaw& q) {
    F32x16 a = broadcast((float)(scale * 0x1p40 / (double)(int64_t)total));
    float b = (float)(0x1p40 / (double)(int64_t)q.total);
    for (int64_t i = 0; i < vocab; i += 16) {
      F32x16 rest = (is_own ? load(room + i) : row_weights(i)) * a;
      if (!q.map) rest = max(rest - q.weights_at(i, q.vocab - i) * broadcast(b), broadcast(0.0f));
      store(room + i, rest);
    }
    for (int i = 0; i < num_taken; i++) room[taken[i]] = 0.0f;
    if (q.map) subtract_mapped(q, b);
    is_own = is_residual = true;
    num_taken = 0;
    total = total_mass(0, vocab, [&](int64_t i, int64_t) { return load(room + i); });
    return (double)(int64_t)total * 0x1p-40;
  }
  // Nothing is left: the row's own law again.
  void restore() {
    is_own = false;
    num_taken = 0;
  }
  int32_t draw(const NoiseKey& key) const {
    Rest rest{{}, this};
    NoiseSource noise{key, nullptr};
    if (is_own)
      rank_perturbed(0, vocab, noise, [&](int64_t i) { return log_weights(i); }, rest.top);
    else
      draw_between(*row, logits, 0, vocab, noise, rest);
    return rest.top.best.id;
  }

 private:
  // Takes no token that was rejected.
  struct Rest {
    TopOne top;
    const NodeLaw* law;

    float bar() const { return top.bar(); }
    void offer(float score, int32_t id) {
      if (!law->is_taken(id)) top.offer(score, id);
    }
  };
  F32x16 log_weights(int64_t i) const {
    F32x16 w = i < vocab ? load(room + i) : broadcast(0.0f);
    return select(w < broadcast(0x1p-126f), broadcast(-kInfinity), log(w));
  }
  void subtract_mapped(const DraftLaw& q, float b) {
    for (int64_t i = 0; i < q.vocab; i += 16) {
      float part[16];
      store(part, q.weights_at(i, q.vocab - i) * broadcast(b));
      for (int64_t lane = 0; lane < 16 && i + lane < q.vocab; lane++) {
        float& w = room[q.map[i + lane]];
        w = specfast::max(w - part[lane], 0.0f);
      }
    }
  }
};

}  // namespace specfast::cpu::SPECFAST_TIER
