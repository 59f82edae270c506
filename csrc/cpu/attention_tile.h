// One tile of 64 columns of one kv head: dot products with the lanes over columns, and weighted
// sums of V with the lanes over dimensions. A score adds d = 0..D-1 in order and an output adds
// columns in order, each in a lane of its own, so neither the other rows nor the tier can show.
#pragma once
#include "core/paged_kv.h"
#include "cpu/simd.h"
#include "params.h"

namespace specfast::cpu::SPECFAST_TIER {

constexpr int kTile = 64;
// Rows and vectors of accumulators that one sweep keeps in registers.
#if defined(__AVX512F__)
constexpr int kBlockRows = 6, kBlockVectors = 4;
#elif defined(__AVX2__)
constexpr int kBlockRows = 3, kBlockVectors = 2;
#else
constexpr int kBlockRows = 1, kBlockVectors = 1;
#endif

template <class Element>
struct Tile {
  float* keys;                    // [D, 64] K, transposed
  const Element* columns[kTile];  // K of each column in the cache
  const Element* const* next;     // [64] columns to fetch while these are used, or null
  int64_t stride;                 // elements from one token of a block to the next
  int64_t plane;                  // elements from a column's K to its V
};

// A packed row: one query head of one token.
struct Row {
  const float* q;  // [D]
  float* out;      // [D]
  float* state;    // see attention_state.h
  int64_t token;
  int64_t begin, end;  // the logical positions that it sees
  int64_t gathered;    // from this position on its columns are not in their own slots
  int lo, hi;          // the columns of the current tile that it sees
};

SPECFAST_INLINE F32x16 load_element(const float* p) { return load(p); }
SPECFAST_INLINE F32x16 load_element(const uint16_t* p) { return load_bf16(p); }

template <class Element>
SPECFAST_INLINE void fetch(const Element* p, int64_t elements) {
  for (int64_t byte = 0; byte < elements * (int64_t)sizeof(Element); byte += 64)
    __builtin_prefetch((const char*)p + byte);
}

// 16 bytes of 16 rows, `stride` bytes apart: word i of row r becomes lane r of out[i].
SPECFAST_INLINE void load_transposed(const void* rows, int64_t stride, I32x16 (&out)[4]) {
  for (int r = 0; r < 4; r++) out[r] = load_quads((const char*)rows + r * stride, 4 * stride);
  transpose_quads(out[0], out[1], out[2], out[3]);
}

// 16 columns of K, `stride` elements apart, into lanes 0..15 of each row of keys.
inline void transpose_keys(const float* k, int64_t stride, int64_t head_dim, float* keys) {
  for (int64_t d = 0; d < head_dim; d += 4) {
    I32x16 out[4];
    load_transposed(k + d, stride * 4, out);
    for (int i = 0; i < 4; i++) store(keys + (d + i) * kTile, bitcast_f32(out[i]));
  }
}
inline void transpose_keys(const uint16_t* k, int64_t stride, int64_t head_dim, float* keys) {
  for (int64_t d = 0; d < head_dim; d += 8) {
    I32x16 pairs[4];  // an even dimension in the low half of a word, the next one in the high half
    load_transposed(k + d, stride * 2, pairs);
    for (int i = 0; i < 4; i++) {
      I32x16 high = pairs[i] & broadcast((int32_t)0xffff0000);
      store(keys + (d + 2 * i) * kTile, bitcast_f32(shift_left<16>(pairs[i])));
      store(keys + (d + 2 * i + 1) * kTile, bitcast_f32(high));
    }
  }
}

template <class Element>
bool evenly_apart(const Element* const* columns, int64_t stride) {
  bool even = true;
  for (int i = 1; i < 16; i++) even &= columns[i] == columns[0] + i * stride;
  return even;
}

// K of columns [lo, hi). The rest of their vectors is 0, the rest of the tile is stale: a score of
// a column that a row doesn't see never leaves its lane.
template <class Element>
void stage_keys(const Tile<Element>& tile, int lo, int hi, int64_t head_dim) {
  alignas(64) Element rows[16 * kMaxHeadDim];
  for (int c = lo / 16 * 16; c < hi; c += 16) {
    const Element* const* columns = tile.columns + c;
    if (lo <= c && c + 16 <= hi && evenly_apart(columns, tile.stride)) {
      transpose_keys(columns[0], tile.stride, head_dim, tile.keys + c);
      continue;
    }
    size_t bytes = (size_t)head_dim * sizeof(Element);
    memset(rows, 0, 16 * bytes);
    for (int i = 0; i < 16; i++)
      if (lo <= c + i && c + i < hi) memcpy(rows + i * head_dim, columns[i], bytes);
    transpose_keys(rows, head_dim, head_dim, tile.keys + c);
  }
}

// scores[r][c] = q of row r . K of column c. Meanwhile K of the next columns is fetched: in small
// steps, since a burst would only queue.
template <int Rows, class Element>
void dot_products(const Tile<Element>& tile, const Row* rows, int64_t head_dim,
                  float (*scores)[kTile]) {
  for (int c = 0; c < kTile; c += 16 * kBlockVectors) {
    F32x16 sum[Rows][kBlockVectors];
    for (int r = 0; r < Rows; r++)
      for (int i = 0; i < kBlockVectors; i++) sum[r][i] = broadcast(0.0f);
    for (int64_t step = 0; step < 16; step++) {
      if (tile.next && c == 0)
        for (int i = 0; i < 4; i++) fetch(tile.next[4 * step + i], head_dim);
      for (int64_t d = step * head_dim / 16; d < (step + 1) * head_dim / 16; d++) {
        F32x16 k[kBlockVectors];
        for (int i = 0; i < kBlockVectors; i++) k[i] = load(tile.keys + d * kTile + c + 16 * i);
        for (int r = 0; r < Rows; r++) {
          F32x16 q = broadcast(rows[r].q[d]);
          for (int i = 0; i < kBlockVectors; i++) sum[r][i] = fma(k[i], q, sum[r][i]);
        }
      }
    }
    for (int r = 0; r < Rows; r++)
      for (int i = 0; i < kBlockVectors; i++) store(scores[r] + c + 16 * i, sum[r][i]);
  }
}

// Dimensions [d, d + 16 Vectors) of o = fma(weight, v, o) over columns [lo, hi), o at the state's
// start. Meanwhile V of the next columns is fetched.
template <int Rows, int Vectors, class Element>
void add_columns(const Tile<Element>& tile, int64_t d, const Row* rows,
                 const float (*weights)[kTile], int lo, int hi) {
  F32x16 o[Rows][Vectors];
  for (int r = 0; r < Rows; r++)
    for (int i = 0; i < Vectors; i++) o[r][i] = load(rows[r].state + d + 16 * i);
  int64_t at = tile.plane + d;
  for (int c = lo; c < hi; c++) {
    if (tile.next) fetch(tile.next[c] + at, 16 * Vectors);
    const Element* value = tile.columns[c] + at;
    F32x16 v[Vectors];
    for (int i = 0; i < Vectors; i++) v[i] = load_element(value + 16 * i);
    for (int r = 0; r < Rows; r++) {
      F32x16 w = broadcast(weights[r][c]);
      for (int i = 0; i < Vectors; i++) o[r][i] = fma(w, v[i], o[r][i]);
    }
  }
  for (int r = 0; r < Rows; r++)
    for (int i = 0; i < Vectors; i++) store(rows[r].state + d + 16 * i, o[r][i]);
}

template <int Rows, class Element>
void add_values(const Tile<Element>& tile, int64_t head_dim, const Row* rows,
                const float (*weights)[kTile], int lo, int hi) {
  if (lo >= hi) return;
  int64_t d = 0;
  for (; d + 16 * kBlockVectors <= head_dim; d += 16 * kBlockVectors)
    add_columns<Rows, kBlockVectors>(tile, d, rows, weights, lo, hi);
  for (; d < head_dim; d += 16) add_columns<Rows, 1>(tile, d, rows, weights, lo, hi);
}

// Every row over its own columns: together over those that all see, alone before and after.
template <int Rows, class Element>
void add_tile(const Tile<Element>& tile, int64_t head_dim, const Row* rows,
              const float (*weights)[kTile]) {
  int lo = 0, hi = kTile;
  for (int r = 0; r < Rows; r++) {
    if (rows[r].lo > lo) lo = rows[r].lo;
    if (rows[r].hi < hi) hi = rows[r].hi;
  }
  if (lo > hi) lo = hi;
  for (int r = 0; r < Rows; r++) {
    int before = rows[r].hi < lo ? rows[r].hi : lo;
    add_values<1>(tile, head_dim, rows + r, weights + r, rows[r].lo, before);
  }
  add_values<Rows>(tile, head_dim, rows, weights, lo, hi);
  for (int r = 0; r < Rows; r++) {
    int after = rows[r].lo > hi ? rows[r].lo : hi;
    add_values<1>(tile, head_dim, rows + r, weights + r, after, rows[r].hi);
  }
}

}  // namespace specfast::cpu::SPECFAST_TIER
