// tree_attention on CUDA: near the real answer, and each row the same bytes whatever is computed
// beside it.
#include <set>
#include <stdexcept>

#include "attention_case.h"
#include "cuda/attention_stages.cuh"

namespace {

using namespace attention_case;

// A sequence whose first slots hold a prefix, then nodes; parents[i] is the parent of node i (-1:
// the prefix's last token). Rows: the prefix's last `tail`, then the nodes.
Sequence sequence(int id, int32_t prefix, int32_t tail, const std::vector<int>& parents = {}) {
  Sequence s{{}, prefix, {}, 0};
  for (int32_t p = 0; p < prefix; p++) s.slots.push_back(10000 * id + p);
  for (int32_t p = prefix - tail; p < prefix; p++) s.rows.push_back({s.slots[(size_t)p], p, 0});
  std::vector<uint64_t> bits;
  for (size_t i = 0; i < parents.size(); i++) {
    bits.push_back((parents[i] < 0 ? 0 : bits[(size_t)parents[i]]) | 1ull << i);
    s.slots.push_back(10000 * id + 9000 + (int)i);
    s.rows.push_back({s.slots.back(), prefix + specfast::path_length(bits[i]) - 1, bits[i]});
  }
  return s;
}

Sequence starting_at(int32_t kv_start, Sequence s) {
  s.kv_start = kv_start;
  return s;
}

Sequence only(const Sequence& s, size_t begin, size_t end) {
  Sequence part = s;
  part.rows.assign(s.rows.begin() + (ptrdiff_t)begin, s.rows.begin() + (ptrdiff_t)end);
  return part;
}

std::vector<int> chain(int nodes) {
  std::vector<int> parents;
  for (int i = 0; i < nodes; i++) parents.push_back(i - 1);
  return parents;
}

// Each node's parent is one of the `reach` before it, or the root.
std::vector<int> random_tree(int nodes, int reach, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> parents;
  for (int i = 0; i < nodes; i++)
    parents.push_back(std::max(-1, i - 1 - (int)(random() % (unsigned)reach)));
  return parents;
}

// What a row of a tree is once its path is accepted: a plain row after a longer prefix.
Sequence accepted(const Sequence& s, const Row& row) {
  Sequence plain{{}, row.position + 1, {{row.token, row.position, 0}}, s.kv_start};
  plain.slots.assign(s.slots.begin(), s.slots.begin() + s.node_base);
  for (uint64_t bits = row.bits; bits; bits &= bits - 1)
    plain.slots.push_back(s.slots[(size_t)(s.node_base + specfast::first_node(bits))]);
  return plain;
}

// The i-th row of outputs.
template <class T>
std::vector<T> nth_row(const std::vector<T>& outputs, const Shape& shape, size_t i) {
  ptrdiff_t length = shape.heads() * shape.dim, begin = (ptrdiff_t)i * length;
  return std::vector<T>(outputs.begin() + begin, outputs.begin() + begin + length);
}

// got against what is expected of it, and against the CPU's answer.
template <class T>
bool near(const std::vector<T>& got, const std::vector<Expected>& expected) {
  constexpr double kHalfUlp = sizeof(T) == 2 ? 0x1p-8 : 0x1p-23;
  for (size_t i = 0; i < got.size(); i++) {
    const Expected& e = expected[i];
    double allowed = e.rounded_error + kHalfUlp * std::abs(e.rounded);
    if (!(std::abs(specfast::widen(got[i]) - e.rounded) <= allowed)) return false;
  }
  return got.size() == expected.size();
}

bool near_cpu(const std::vector<float>& got, const Batch& batch,
              const std::vector<Expected>& expected) {
  std::vector<float> cpu = attend_on_cpu(batch);
  for (size_t i = 0; i < cpu.size(); i++)
    if (!(std::abs((double)got[i] - (double)cpu[i]) <= expected[i].exact_error)) return false;
  return got.size() == cpu.size();
}

// fp32 outputs, after they and bf16's were found to be what they should.
std::vector<float> checked(const Batch& batch) {
  auto expected = expect(batch);
  auto got = attend<float>(batch);
  CHECK(near(got, expected));
  CHECK(near_cpu(got, batch, expected));
  auto narrowed = map<Bf16>(got, specfast::narrow<Bf16>), bf16 = attend<Bf16>(batch);
  CHECK_BYTES(bf16, narrowed);
  return got;
}

TEST(tree_attention_is_near_the_real_answer) {
  unsigned seed = 0;
  for (int64_t dim : {64, 128})
    for (int64_t group : {1, 3, 4, 8}) {
      Shape shape;
      shape.dim = dim, shape.group = group, shape.block_size = group == 3 ? 24 : 4 * group;
      checked({shape, {sequence(1, 70, 2, random_tree(9, 3, seed++)), sequence(2, 5, 5)}, {}});
    }
}

TEST(tree_attention_caps_scores_and_has_a_window) {
  for (float soft_cap : {0.0f, 3.0f})
    for (int64_t window : {1, 5, 64, 100}) {
      Shape shape;
      shape.kv_heads = 2, shape.group = 2, shape.soft_cap = soft_cap, shape.window = window;
      checked({shape, {sequence(1, 140, 2, random_tree(12, 2, 5)), sequence(2, 70, 70)}, {}});
    }
}

TEST(tree_attention_has_a_window_over_splits) {
  Shape shape;
  shape.window = 300;
  Batch batch{shape, {sequence(1, 1500, 3, chain(4)), sequence(2, 1100, 1)}, {}};
  auto expected = checked(batch);
  batch.layout.workspace = false;
  auto walked = attend<float>(batch);
  CHECK_BYTES(walked, expected);
  batch.shape.window = 0;
  expected = attend<float>(batch);
  batch.shape.window = INT64_MAX;
  walked = attend<float>(batch);
  CHECK_BYTES(walked, expected);
}

TEST(tree_attention_starts_where_keys_are_valid) {
  for (int32_t start : {1, 63, 64, 130, 139, 142, 143, 200}) {
    auto got = checked({{}, {starting_at(start, sequence(1, 140, 3, chain(3)))}, {}});
    for (size_t i = 0; i < 6; i++) CHECK_EQ(all_zero(nth_row(got, {}, i)), 137 + (int)i < start);
  }
}

// Long enough for splits; the second sequence has more than one block of rows in either layout.
Batch two_sequences() {
  Shape shape;
  shape.group = 3;
  return {shape,
          {starting_at(380, sequence(1, 1023, 2, random_tree(14, 3, 8))), sequence(2, 90, 30)},
          {}};
}

TEST(layouts_splits_and_pages_give_the_same_bytes) {
  Batch batch = two_sequences();
  auto expected = checked(batch);
  auto check = [&](Layout layout, int64_t block_size = 16) {
    Batch other = batch;
    other.layout = layout, other.shape.block_size = block_size;
    auto got = attend<float>(other);
    CHECK_BYTES(got, expected);
  };
  Layout decode, walk, decode_walk, strays, pages, noise;
  decode.empty_sequences = decode_walk.empty_sequences = 10;
  walk.workspace = decode_walk.workspace = false;
  strays.strays = 3, strays.spare_blocks = 100;
  pages.pages = 7;
  for (const Layout& layout : {decode, walk, decode_walk, strays}) check(layout);
  for (int64_t block_size : {1, 24, 64}) check(pages, block_size);
  for (float sign : {1.0f, -1.0f}) {
    noise.query_noise = sign * 0x1p-10f;
    check(noise, 32);
  }
}

TEST(rows_do_not_depend_on_their_neighbours) {
  Batch batch = two_sequences();
  auto expected = attend<float>(batch);
  const Sequence &first = batch.sequences[0], &second = batch.sequences[1];
  auto check = [&](const Sequence& s, size_t row, std::vector<Sequence> before,
                   std::vector<Sequence> after, size_t at) {
    Batch other = batch;
    other.sequences = before;
    other.sequences.push_back(s);
    other.sequences.insert(other.sequences.end(), after.begin(), after.end());
    auto got = attend<float>(other);
    for (size_t i = 0; i < s.rows.size(); i++) {
      auto one = nth_row(got, batch.shape, at + i), same = nth_row(expected, batch.shape, row + i);
      CHECK_BYTES(one, same);
    }
  };
  for (size_t i : {0, 1, 2, 9, 15}) check(only(first, i, i + 1), i, {}, {}, 0);
  check(only(first, 1, 7), 1, {sequence(3, 20, 20)}, {sequence(4, 600, 1)}, 20);
  for (size_t cut : {1, 17}) {
    check(only(second, 0, cut), 16, {}, {}, 0);
    check(only(second, cut, 30), 16 + cut, {}, {first}, 0);
  }
}

TEST(rows_of_a_tree_are_the_plain_rows_that_follow) {
  struct Case {
    int32_t base;
    std::vector<int> parents;
    int32_t kv_start;
    int64_t window;
  };
  for (const Case& c :
       {Case{60, random_tree(64, 4, 1), 0, 0}, Case{64, random_tree(20, 8, 2), 0, 0},
        Case{500, random_tree(64, 2, 3), 440, 0}, Case{511, random_tree(40, 3, 4), 470, 0},
        Case{127, chain(64), 100, 0}, Case{1, random_tree(64, 64, 5), 0, 0},
        Case{120, random_tree(30, 2, 6), 0, 7}}) {
    Shape shape;
    shape.group = c.base == 64 ? 8 : 2, shape.window = c.window;
    Sequence tree = starting_at(c.kv_start, sequence(1, c.base, 1, c.parents));
    auto got = attend<float>({shape, {tree}, {}});
    Batch later{shape, {}, {}};
    for (const Row& row : tree.rows) later.sequences.push_back(accepted(tree, row));
    auto plain = attend<float>(later);
    CHECK_BYTES(got, plain);
  }
}

// Anything goes: every row is near the real answer, and what it would be alone.
TEST(random_batches) {
  for (unsigned seed = 0; seed < 10; seed++) {
    std::mt19937 random(seed);
    auto below = [&](unsigned n) { return (int)(random() % n); };
    Shape shape;
    shape.dim = 64 << below(2), shape.group = 1 + below(4), shape.kv_heads = 1 + below(2);
    shape.block_size = 1 << below(7), shape.window = below(2) * below(150);
    shape.soft_cap = (float)(below(2) * 4);
    Batch batch{shape, {}, {}}, alone{shape, {}, {}};
    for (int id = 0; id <= below(4); id++) {
      int32_t base = below(3) ? below(150) : 505 + below(14);
      Sequence s = sequence(id, base, below((unsigned)std::min(base, 30) + 1),
                            random_tree(below(2) * below(65), 1 + below(5), random()));
      s.kv_start = base < 200 ? below(60) : base - below(80);
      std::vector<Row> some;
      for (const Row& row : s.rows)
        if (below(4)) some.push_back(row);
      s.rows = some;
      batch.sequences.push_back(s);
      for (const Row& row : s.rows) alone.sequences.push_back(accepted(s, row));
    }
    batch.layout.workspace = below(2), batch.layout.strays = below(3);
    batch.layout.empty_sequences = below(2) * 20;
    auto got = checked(batch), expected = attend<float>(alone);
    CHECK_BYTES(got, expected);
  }
}

TEST(columns_that_no_row_sees_are_not_read) {
  Shape shape;
  shape.window = 3;
  Sequence sparse = sequence(1, 150, 150, random_tree(5, 2, 1));
  sparse.rows = {sparse.rows[10], sparse.rows[40], sparse.rows[149], sparse.rows[154]};
  checked({shape, {sparse}, {}});
  shape.window = 0;
  checked({shape, {only(sparse, 3, 4)}, {}});
}

TEST(rows_without_columns_give_zero) {
  Sequence padding = sequence(1, 10, 0);
  padding.rows = {{1, -1, 0}, {2, -1, 0}, {3, -1, 0}};
  for (bool workspace : {true, false}) {
    Batch batch{{}, {padding, sequence(2, 600, 1), padding}, {}};
    batch.layout.workspace = workspace, batch.layout.strays = 2;
    auto got = attend<float>(batch);
    for (size_t i = 0; i < 7; i++) CHECK_EQ(all_zero(nth_row(got, {}, i)), i != 3);
    Batch none{{}, {}, batch.layout};
    CHECK_EQ(attend<float>(none).size(), 0u);
  }
}

// Of NaN, or with scores in the thousands, which leave nothing of weights under a common maximum.
TEST(odd_queries_stay_in_their_row) {
  Batch batch{{}, {sequence(1, 600, 4, chain(3))}, {}};
  auto expected = attend<float>(batch);
  batch.layout.odd_row = 2;
  for (float factor : {__builtin_nanf(""), 1000.0f, 0.0f})
    for (int empty : {0, 1}) {
      batch.layout.empty_sequences = empty, batch.layout.odd_factor = factor;
      auto got = attend<float>(batch);
      for (size_t i = 0; i < 7; i++) {
        auto row = nth_row(got, {}, i), same = nth_row(expected, {}, i);
        if (i != 2) CHECK_BYTES(row, same);
        CHECK(i != 2 || std::all_of(row.begin(), row.end(), [&](float x) {
                return std::isfinite(x) == std::isfinite(factor);
              }));
      }
    }
}

// Half of the slots lie past 2^31 elements, and their V past 2^32.
TEST(offsets_into_the_cache_have_64_bits) {
  Shape shape;
  shape.kv_heads = 8, shape.block_size = 2;
  Batch batch{shape, {sequence(1, 20, 1)}, {}};
  auto expected = attend<float>(batch);
  batch.layout.num_blocks = 1 << 22;
  auto got = attend<float>(batch);
  CHECK_BYTES(got, expected);
}

template <class Change>
bool refused(Change change) {
  specfast::TreeAttentionParams p = Tensors<float>({{}, {sequence(1, 600, 1)}, {}}).params({});
  p.workspace_floats = specfast::cuda::tree_attention_workspace(p).least;
  change(p);
  try {
    specfast::cuda::tree_attention(p, nullptr);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

TEST(what_no_kernel_fits_is_refused) {
  CHECK(refused([](auto& p) { p.cache.head_dim = 80; }));
  CHECK(refused([](auto& p) { p.cache.dtype = DType::f32; }));
  CHECK(refused([](auto& p) { p.cache.num_blocks = (1 << 26) + 1; }));
  CHECK(refused([](auto& p) { p.max_blocks = (1 << 26) + 1; }));
  CHECK(refused([](auto& p) { p.workspace_floats--; }));
  CHECK(refused([](auto& p) { p.q_stride = 65; }));
  CHECK(refused([](auto& p) { p.q++; }));
  CHECK(refused([](auto& p) { p.out++; }));
  CHECK(refused([](auto& p) { p.cache.data = static_cast<char*>(p.cache.data) + 8; }));
}

// ldmatrix reads eight rows of 16 bytes at once; shared memory has 128 bytes of banks.
TEST(eight_staged_rows_lie_in_different_banks) {
  auto banks = [](auto chunk_at, int row, int chunk) {
    std::set<int> groups;
    for (int i = 0; i < 8; i++) groups.insert(chunk_at(row + i, chunk) / 8 % 8);
    return groups.size();
  };
  for (int row = 0; row < 64; row += 8)
    for (int chunk = 0; chunk < 8; chunk++) {
      CHECK_EQ(banks(specfast::cuda::chunk_at<64>, row, chunk), 8u);
      CHECK_EQ(banks(specfast::cuda::chunk_at<128>, row, chunk), 8u);
      CHECK_EQ(banks(specfast::cuda::chunk_at<128>, row, chunk + 8), 8u);
    }
}

}  // namespace
