// The m best z + G of a slice, ranked by target id. Noise costs little until its logarithms are
// taken, so those are taken only of tokens that an upper bound lets into the list.
#pragma once
#include "cuda/select.cuh"

namespace specfast::cuda {

// The noise of a row's tokens, whose target ids are their own, or mapped.
struct TargetNoise {
  NoiseKey key;
  const int32_t* target_ids;  // [V] or null

  __device__ int32_t id(int32_t i) const { return target_ids ? target_ids[i] : i; }
  __device__ float score(float z, int32_t i) const {
    return z + gumbel_of_id(key, (uint32_t)id(i));
  }
  // At least the scores.
  __device__ Quad bounds(int32_t first, const Quad& z) const {
    Quad bound;
    PhiloxBlock<uint32_t> block{};
    if (!target_ids) block = keyed_noise((uint32_t)first / 4, key);
    const uint32_t words[4] = {block.x0, block.x1, block.x2, block.x3};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      bound.v[j] = -kInfinity;
      if (!(-kInfinity < z.v[j])) continue;
      float v =
          target_ids ? uniform_of_id(key, (uint32_t)target_ids[first + j]) : uniform(words[j]);
      bound.v[j] = z.v[j] + gumbel_bound(v);
    }
    return bound;
  }
};

__device__ inline float largest_of_quad(const Quad& x) {
  return max(max(x.v[0], x.v[1]), max(x.v[2], x.v[3]));
}
// Lists a slice's m best of the tile's own scores (no NaN).
__device__ inline void list_plain(const BestLists& lists, int64_t row, const Tile& tile,
                                  const TargetNoise& noise, int64_t m) {
  float top = -kInfinity;
  tile.each_quad([&](int32_t, const Quad& x) { top = max(largest_of_quad(x), top); });
  auto each = [&](auto f) { tile.each(f, [&](int32_t i) { return noise.id(i); }); };
  lists.fill(row, tile.slice.index, each, block_max(top), (Wide)m);
}

// Lists a slice's m best z + G. tile: z, which is lost; z_of(i): that of token i again.
template <class ZOf>
__device__ void list_perturbed(const BestLists& lists, int64_t row, const Tile& tile,
                               const TargetNoise& noise, int64_t m, ZOf z_of) {
  float top = -kInfinity;
  tile.each_quad([&](int32_t first, const Quad& z) {
    Quad bound = noise.bounds(first, z);
    tile.put(first, bound);
    top = max(largest_of_quad(bound), top);
  });
  top = block_max(top);
  auto each_bound = [&](auto f) { tile.each(f); };
  Cut cut = cut_to(each_bound, top, (Wide)m);
  // The m tokens of the largest bounds score at least this; so do the m best.
  float bar = kInfinity;
  each_bound([&](Rank r) {
    if (cut.keeps(nearness(top, score_of(r)), r))
      bar = min(noise.score(z_of(id_of(r)), id_of(r)), bar);
  });
  bar = block_min(bar);
  tile.each_quad([&](int32_t first, Quad x) {
    for (int j = 0; j < 4; j++)
      x.v[j] = -kInfinity < x.v[j] && bar <= x.v[j] ? noise.score(z_of(first + j), first + j)
                                                    : -kInfinity;
    tile.put(first, x);
  });
  list_plain(lists, row, tile, noise, m);
}

}  // namespace specfast::cuda
