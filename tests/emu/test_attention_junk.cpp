// tree_attention where values that index are junk, as in warm-up: it stays within its tensors, and
// the rows of other sequences are none the wiser.
#include "attention_case.h"

namespace {

using namespace attention_case;

constexpr int32_t kJunk[] = {INT32_MIN, INT32_MIN + 1,  -64,           -2,       -1, 0, 1, 63,
                             1 << 30,   INT32_MAX - 63, INT32_MAX - 1, INT32_MAX};

struct Junk {
  std::mt19937 random;
  size_t below(size_t n) { return random() % n; }
  int32_t value() { return kJunk[below(std::size(kJunk))]; }
  int64_t bits() { return below(2) ? (int64_t)(random() * 0x9e3779b97f4a7c15u) : value(); }
};

// A prefix whose last three tokens are rows, then nodes of which every third begins a branch.
Sequence sequence(int id, int32_t prefix, int nodes) {
  Sequence s{{}, prefix, {}, 0};
  for (int32_t p = 0; p < prefix + nodes; p++) s.slots.push_back(1000 * id + p);
  for (int32_t p = prefix - 3; p < prefix; p++) s.rows.push_back({s.slots[(size_t)p], p, 0});
  uint64_t path = 0;
  for (int i = 0; i < nodes; i++) {
    path = (i % 3 ? path : 0) | 1ull << i;
    s.rows.push_back(
        {s.slots[(size_t)(prefix + i)], prefix + specfast::path_length(path) - 1, path});
  }
  return s;
}

constexpr size_t kRows = 3 + 8;  // of each sequence

Batch three_sequences(bool workspace) {
  Batch batch{{}, {sequence(1, 600, 8), sequence(2, 70, 8), sequence(3, 61, 8)}, {}};
  batch.layout.workspace = workspace;
  return batch;
}

// Something of the second sequence becomes junk.
template <class T>
void spoil(Tensors<T>& t, Junk& junk) {
  size_t row = kRows + junk.below(kRows), entry = (size_t)t.max_blocks + junk.below(5);
  switch (junk.below(5)) {
    case 0:
      t.positions[row] = junk.value();
      break;
    case 1:
      t.bits[row] = junk.bits();
      break;
    case 2:
      t.tables[entry] = junk.value();
      break;
    case 3:
      t.node_base[1] = junk.value();
      break;
    default:
      t.kv_start[1] = junk.value();
  }
}

TEST(junk_of_a_sequence_is_its_own) {
  ptrdiff_t width = Shape{}.heads() * Shape{}.dim, rows = (ptrdiff_t)kRows;
  auto others = [&](std::vector<float> out) {
    out.erase(out.begin() + rows * width, out.begin() + 2 * rows * width);
    return out;
  };
  auto expected = others(attend<float>(three_sequences(true)));
  Junk junk{std::mt19937(1)};
  for (int repeat = 0; repeat < 60; repeat++) {
    auto got = others(attend<float>(three_sequences(repeat % 2), [&](auto& t) {
      for (size_t i = 0; i <= junk.below(4); i++) spoil(t, junk);
    }));
    CHECK_BYTES(got, expected);
  }
}

// Where a sequence begins or ends outside the rows, it has none, or those up to the last.
TEST(rows_out_of_bounds_are_nobodys) {
  for (bool workspace : {true, false})
    for (size_t i = 0; i < 4; i++)
      for (int32_t bound : kJunk)
        if (i < 3 ? bound < 0 : bound > 63)
          attend<float>(three_sequences(workspace), [&](auto& t) { t.indptr[i] = bound; });
}

}  // namespace
