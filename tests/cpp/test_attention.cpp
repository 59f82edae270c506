// tree_attention and the cache ops without torch, so that sanitizers see them: the cache ends where
// its last slot ends, and holds NaN where nothing may be read.
#include "core/tree.h"
#include "everywhere.h"

namespace {

using namespace everywhere;
using specfast::DType;
using specfast::KvLayer;

constexpr float kNan = __builtin_nanf("");

uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (uint16_t)(bits >> 16);
}

// One sequence whose blocks lie in reverse order, with room for every position it may use.
struct Cache {
  int64_t block_size, heads, dim;
  std::vector<int32_t> table;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;

  Cache(int64_t tokens, int64_t size, int64_t kv_heads, int64_t head_dim)
      : block_size(size), heads(kv_heads), dim(head_dim), table((tokens + size - 1) / size) {
    for (size_t i = 0; i < table.size(); i++) table[i] = (int32_t)(table.size() - 1 - i);
    f32 = normal(2 * table.size() * size * heads * dim, 3);
    for (int64_t p = tokens; p < (int64_t)table.size() * size; p++)
      for (int64_t plane = 0; plane < 2; plane++) std::fill_n(token(plane, p), heads * dim, kNan);
    for (float x : f32) bf16.push_back(to_bf16(x));
  }

  float* token(int64_t plane, int64_t position) {
    int64_t slots = (int64_t)table.size() * block_size;
    int64_t slot = table[position / block_size] * block_size + position % block_size;
    return f32.data() + (plane * slots + slot) * heads * dim;
  }

  KvLayer layer(DType dtype) {
    void* data = dtype == DType::f32 ? (void*)f32.data() : (void*)bf16.data();
    return {data, (int64_t)table.size(), block_size, heads, dim, dtype};
  }
};

struct Rows {
  std::vector<int32_t> positions;
  std::vector<int64_t> bits;
  int32_t base;
};

// A tail of `tail` rows, then nodes: 0, 1 beside it, 2 and 3 under 1, and a chain under 3.
Rows tail_and_tree(int32_t base, int32_t tail, int nodes) {
  Rows rows{{}, {}, base};
  for (int32_t i = 0; i < tail; i++) rows.positions.push_back(base - tail + i);
  rows.bits.resize(tail, 0);
  std::vector<int64_t> path(nodes);
  for (int node = 0; node < nodes; node++) {
    int parent = node < 2 ? -1 : node < 4 ? 1 : node - 1;
    path[node] = (parent < 0 ? 0 : path[parent]) | (int64_t)1 << node;
    rows.bits.push_back(path[node]);
    rows.positions.push_back(base + specfast::path_length((uint64_t)path[node]) - 1);
  }
  return rows;
}

std::vector<float> attend(Cache& cache, DType dtype, const Rows& rows, int64_t group,
                          int64_t window, float soft_cap, ParallelFor pool) {
  int64_t M = (int64_t)rows.positions.size(), H = group * cache.heads;
  std::vector<float> q = normal(M * H * cache.dim, 4), out(q.size(), kNan);
  int32_t indptr[2] = {0, (int32_t)M}, start = 0;
  specfast::TreeAttentionParams p{};
  p.q = q.data(), p.out = out.data(), p.cache = cache.layer(dtype);
  p.block_tables = cache.table.data(), p.max_blocks = (int64_t)cache.table.size();
  p.qo_indptr = indptr, p.node_base = &rows.base, p.kv_start = &start;
  p.positions = rows.positions.data(), p.node_bits = rows.bits.data();
  p.B = 1, p.M = M, p.H = H, p.q_stride = H * cache.dim;
  p.scale = 0.2f, p.window = window, p.soft_cap = soft_cap;
  specfast::cpu::tree_attention(p, pool);
  return out;
}

bool finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

TEST(attention_is_the_same_everywhere) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t dim : {16, 48, 80})
      for (int32_t base : {61, 509}) {
        Cache cache(base + 9, 8, 2, dim);
        Rows rows = tail_and_tree(base, 2, 9);
        CHECK(finite(same_bytes([&](ParallelFor pool) {
          return attend(cache, dtype, rows, 3, base == 61 ? 40 : 0, base == 61 ? 0 : 5.0f, pool);
        })));
      }
}

TEST(attention_of_many_rows_is_the_same_everywhere) {
  Cache cache(140, 1, 1, 16);
  Rows rows = tail_and_tree(100, 100, 40);
  CHECK(finite(same_bytes(
      [&](ParallelFor pool) { return attend(cache, DType::f32, rows, 2, 0, 0, pool); })));
}

TEST(attention_does_not_read_what_no_row_sees) {
  Cache cache(70, 16, 1, 32);
  for (int64_t p = 0; p < 30; p++)
    for (int64_t plane = 0; plane < 2; plane++) std::fill_n(cache.token(plane, p), 32, kNan);
  Rows rows = tail_and_tree(70, 3, 0);
  CHECK(finite(same_bytes(
      [&](ParallelFor pool) { return attend(cache, DType::f32, rows, 1, 38, 0, pool); })));
}

TEST(padding_gives_zero) {
  Cache cache(1, 16, 1, 16);
  Rows rows{{-1, -1, -1}, {0, 0, 0}, 0};
  auto out =
      same_bytes([&](ParallelFor pool) { return attend(cache, DType::f32, rows, 2, 0, 0, pool); });
  CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == 0; }));
}

TEST(paths_and_their_nodes) {
  uint64_t bits = 1ull << 63 | 1ull << 40 | 7;
  CHECK_EQ(specfast::path_length(bits), 5);
  CHECK_EQ(specfast::first_node(bits), 0);
  CHECK_EQ(specfast::node_at_depth(bits, 2), 2);
  CHECK_EQ(specfast::node_at_depth(bits, 3), 40);
  CHECK_EQ(specfast::node_at_depth(bits, 4), 63);
  CHECK_EQ(specfast::chain_length(bits), 3);
  CHECK_EQ(specfast::chain_length(0), 0);
  CHECK_EQ(specfast::chain_length(~0ull), 64);
}

// q, then the cache's bytes, then the status.
std::vector<float> rope(DType dtype, int64_t dim, int64_t rotary, ParallelFor pool) {
  constexpr int64_t M = 9, H = 3, kHeads = 2, kPositions = 20;
  Cache cache(M, 4, kHeads, dim);
  std::vector<float> qkv = normal(M * (H + 2 * kHeads) * dim, 1), q(M * H * dim);
  std::vector<float> angles = normal(kPositions * rotary, 2), norm = normal(dim, 6);
  qkv[H * dim + 1] = kNan;
  std::vector<int32_t> positions(M), status(M);
  std::vector<int64_t> slots(M);
  for (int64_t i = 0; i < M; i++) positions[i] = (int32_t)(19 - i), slots[i] = i ? 12 - i : 0;
  positions[4] = -1, slots[4] = -1, slots[5] = -1;
  specfast::RopeKvAppendParams p{};
  p.qkv = qkv.data(), p.qkv_stride = (H + 2 * kHeads) * dim, p.cos_sin = angles.data();
  p.positions = positions.data(), p.slots = slots.data(), p.status = status.data();
  p.q_norm = p.k_norm = norm.data(), p.q_out = q.data(), p.cache = cache.layer(dtype);
  p.M = M, p.H = H, p.num_positions = kPositions, p.rotary_dim = rotary, p.eps = 1e-5f;
  specfast::cpu::rope_kv_append(p, pool);
  q.insert(q.end(), cache.f32.begin(), cache.f32.end());
  q.insert(q.end(), cache.bf16.begin(), cache.bf16.end());
  q.insert(q.end(), status.begin(), status.end());
  return q;
}

TEST(rope_is_the_same_everywhere) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t dim : {16, 80})
      for (int64_t rotary : {(int64_t)0, (int64_t)6, dim})
        same_bytes([&](ParallelFor pool) { return rope(dtype, dim, rotary, pool); });
}

TEST(append_stores_rows_and_zeros) {
  for (DType dtype : {DType::f32, DType::bf16})
    same_bytes([&](ParallelFor pool) {
      Cache cache(20, 4, 2, 16);
      std::vector<float> k = normal(20 * 32, 8), v = normal(20 * 32, 9);
      k[5] = kNan, v[40] = 3.4e38f;
      std::vector<int64_t> slots(20);
      std::vector<int32_t> status(20);
      for (int64_t i = 0; i < 20; i++) slots[i] = i == 7 ? -1 : 19 - i;
      specfast::KvAppendParams p{k.data(),           v.data(), slots.data(), status.data(),
                                 cache.layer(dtype), 20,       32,           32};
      specfast::cpu::kv_append(p, pool);
      CHECK_EQ(status[0], specfast::kRowNonFiniteKv);
      CHECK_EQ(status[1], dtype == DType::bf16 ? specfast::kRowNonFiniteKv : specfast::kRowOk);
      cache.f32.insert(cache.f32.end(), cache.bf16.begin(), cache.bf16.end());
      return cache.f32;
    });
}

TEST(compact_moves_a_path_in_place) {
  for (ParallelFor pool : {ParallelFor(specfast::serial_for), ParallelFor(threads_for<3>)}) {
    Cache cache(14, 4, 1, 16), before = cache;
    int32_t base = 3, accepted = 4, path[5] = {0, 2, 3, 10, -1};
    specfast::KvCompactParams p{};
    p.cache = cache.f32.data(), p.block_tables = cache.table.data(), p.node_base = &base;
    p.path = path, p.num_accepted = &accepted;
    p.layers = 1, p.num_blocks = p.max_blocks = (int64_t)cache.table.size(), p.block_size = 4;
    p.token_bytes = 64, p.B = 1, p.N = 5;
    specfast::cpu::kv_compact(p, pool);
    for (int64_t plane = 0; plane < 2; plane++)
      for (int j = 0; j < accepted; j++) {
        std::vector<float> got(16), want(16);
        std::copy_n(cache.token(plane, base + j), 16, got.data());
        std::copy_n(before.token(plane, base + path[j]), 16, want.data());
        CHECK_BYTES(got, want);
      }
  }
}

}  // namespace
