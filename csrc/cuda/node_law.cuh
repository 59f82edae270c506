// What is left of the target's law at a node as its children are rejected: float weights in [0, 1]
// with their integer total. They are not kept anywhere: a token's weight is its row's, from which
// each rejection takes in turn.
#pragma once
#include "core/tree.h"
#include "cuda/draft_laws.cuh"

namespace specfast::cuda {

struct Rejection {
  DraftLaw law;   // what the draft was drawn from
  int32_t token;  // a point mass: its weight is gone
  float a, b;     // else [a p - b q]+ is left
};

struct Residual {
  int32_t size;
  Rejection rejections[kMaxNodes];
};

template <class T>
struct NodeLaw {
  const T* logits;  // [V]
  const RowLaw& row;
  const Residual& left;
  const DraftLaws& draft_laws;

  __device__ float after(const Rejection& r, float w, int32_t token) const {
    if (r.law.row < 0) return token == r.token ? 0.0f : w;
    w = w * r.a;
    int32_t i = draft_laws.index_of(token);
    return i < 0 ? w : max(w - draft_laws.weight_at(r.law, i) * r.b, 0.0f);
  }
  __device__ float weight_at(float z, int32_t token) const {
    float w = row.holds(z, token) ? weight(z, row.scale.exponent) : 0.0f;
    for (int i = 0; i < left.size; i++) w = after(left.rejections[i], w, token);
    return w;
  }
  __device__ float weight_of(int32_t token) const {
    return weight_at(tempered(widen(logits[token]), row.scale.temperature), token);
  }
  // The total. Called by the block.
  __device__ Wide measure(const VocabSlices& slices) const {
    Wide total = 0;
    for (int64_t i = 0; i < slices.count; i++)
      each_quad<8>(logits, slices[i], [&](int32_t first, const Quad& x) {
        Quad z = tempered_quad(x, row.scale.temperature);
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (-kInfinity < z.v[j]) total += mass(weight_at(z.v[j], first + j));
      });
    return block_sum(total);
  }
  // What noise is added to: the row's own z as long as only point masses are gone, else log
  // weights.
  __device__ Quad scores(int32_t first, const Quad& x) const {
    bool is_own = false;
    for (int i = 0; i < left.size; i++) is_own |= left.rejections[i].law.row >= 0;
    Quad z = row.supported(first, x);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float w = -kInfinity < z.v[j] ? weight_at(z.v[j], first + j) : 0.0f;
      bool none = is_own ? w < 0x1p-126f : is_taken(first + j);
      z.v[j] = none || z.v[j] == -kInfinity ? -kInfinity : is_own ? log(w) : z.v[j];
    }
    return z;
  }
  // Of a law that only point masses were taken of.
  __device__ bool is_taken(int32_t token) const {
    for (int i = 0; i < left.size; i++)
      if (left.rejections[i].token == token) return true;
    return false;
  }
};

}  // namespace specfast::cuda
