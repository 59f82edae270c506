#include <algorithm>
#include <numeric>

#include "kv_cases.h"

namespace {

using device::Device;
using device::everywhere;
using kv_cases::between;
using specfast::KvCompactParams;

using Ints = std::vector<int32_t>;

// Sequences in pages of their own, in any order; paths increase, with path[j] >= j.
struct Problem {
  KvCompactParams params{};
  Ints tables, base, path, accepted;
  std::vector<unsigned char> cache;

  Problem(int64_t B, int64_t N, int64_t layers, int64_t block_size, int64_t token_bytes,
          std::mt19937& random) {
    params.B = B, params.N = N, params.layers = layers;
    params.block_size = block_size, params.token_bytes = token_bytes;
    params.max_blocks = (N + 40) / block_size + 1, params.num_blocks = B * params.max_blocks + 1;
    tables.resize((size_t)(B * params.max_blocks));
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), random);
    for (int64_t b = 0; b < B; b++) add_sequence(random);
    cache.resize((size_t)(layers * 2 * params.num_blocks * block_size * token_bytes));
    for (unsigned char& byte : cache) byte = (unsigned char)random();
  }
  void add_sequence(std::mt19937& random) {
    Ints nodes((size_t)params.N);
    std::iota(nodes.begin(), nodes.end(), 0);
    int64_t count = random() % (params.N + 1);
    if (random() % 4) {  // else dense
      std::shuffle(nodes.begin(), nodes.end(), random);
      std::sort(nodes.begin(), nodes.begin() + count);
    }
    std::fill(nodes.begin() + count, nodes.end(), -1);
    path.insert(path.end(), nodes.begin(), nodes.end());
    accepted.push_back((int32_t)count);
    base.push_back((int32_t)(random() % 40));
  }

  KvCompactParams with(const int32_t* tables, const int32_t* base, const int32_t* path,
                       const int32_t* accepted, void* cache) const {
    KvCompactParams p = params;
    p.block_tables = tables, p.node_base = base, p.path = path, p.num_accepted = accepted;
    p.cache = cache;
    return p;
  }
  std::vector<unsigned char> on_device() const {
    return everywhere([&] {
      Device<int32_t> d_tables(tables), d_base(base), d_path(path), d_accepted(accepted);
      Device<unsigned char> d_cache(cache);
      specfast::cuda::kv_compact(
          with(d_tables.data(), d_base.data(), d_path.data(), d_accepted.data(), d_cache.data()),
          nullptr);
      return d_cache.host();
    });
  }
  std::vector<unsigned char> on_cpu() const {
    std::vector<unsigned char> out = cache;
    specfast::cpu::kv_compact(
        with(tables.data(), base.data(), path.data(), accepted.data(), out.data()),
        specfast::serial_for);
    return out;
  }
};

// Columns of 16 bytes and of one, more than a block of threads of either.
TEST(kv_compact_gives_the_bytes_of_the_cpu) {
  std::mt19937 random(1);
  for (int64_t token_bytes : {2, 6, 16, 24, 32, 384, 2064, 300})
    for (int64_t N : {0, 1, 5, 64}) {
      Problem problem(3, N, 2, 16, token_bytes, random);
      CHECK_BYTES(problem.on_device(), problem.on_cpu());
    }
}

TEST(kv_compact_gives_the_bytes_of_the_cpu_at_random) {
  std::mt19937 random(2);
  auto any = [&](int64_t first, int64_t last) { return between(first, last, random); };
  for (int i = 0; i < 150; i++) {
    int64_t token_bytes = any(0, 2) ? 16 * any(1, 20) : any(1, 70);
    Problem problem(any(1, 9), any(1, 64), any(1, 3), any(1, 33), token_bytes, random);
    CHECK_BYTES(problem.on_device(), problem.on_cpu());
  }
}

TEST(kv_compact_moves_in_a_cache_that_begins_off_16_bytes) {
  std::mt19937 random(3);
  Problem problem(2, 9, 1, 4, 32, random);
  auto got = everywhere([&] {
    Device<int32_t> tables(problem.tables), base(problem.base), path(problem.path),
        accepted(problem.accepted);
    Device<unsigned char> cache(problem.cache.size() + 2);
    std::copy(problem.cache.begin(), problem.cache.end(), cache.data() + 2);
    specfast::cuda::kv_compact(
        problem.with(tables.data(), base.data(), path.data(), accepted.data(), cache.data() + 2),
        nullptr);
    auto all = cache.host();
    return std::vector<unsigned char>(all.begin() + 2, all.end());
  });
  CHECK_BYTES(got, problem.on_cpu());
}

// Sequence 1 of three is junk; it moves nothing, and what the others move is theirs.
TEST(kv_compact_moves_nothing_that_is_junk) {
  std::mt19937 random(4);
  constexpr int64_t N = 12;
  const Ints tables_of_junk = {-1, INT32_MIN, INT32_MAX, 1 << 20};
  const Ints bases_of_junk = {-1000, INT32_MIN, INT32_MAX, 1 << 20};
  auto check = [&](auto spoil) {
    Problem problem(3, N, 2, 4, 48, random);
    Problem without = problem;
    without.accepted[1] = 0;
    spoil(problem);
    CHECK_BYTES(problem.on_device(), without.on_cpu());
  };
  for (int32_t junk : {-1, -77, INT32_MIN})
    check([&](Problem& problem) { problem.accepted[1] = junk; });
  for (int32_t junk : bases_of_junk) check([&](Problem& problem) { problem.base[1] = junk; });
  for (int32_t junk : tables_of_junk)
    check([&](Problem& problem) {
      int64_t width = problem.params.max_blocks;
      std::fill_n(problem.tables.begin() + width, width, junk);
    });
  for (int32_t junk : {-1, 0, INT32_MIN, INT32_MAX})
    check([&](Problem& problem) {
      problem.accepted[1] = INT32_MAX;
      std::fill_n(problem.path.begin() + N, N, junk);
    });
}

// Slots, bytes and logical positions beyond 2^31, rows of tables and paths beyond 2^32.
TEST(kv_compact_reaches_beyond_32_bits) {
  struct alignas(16) Token {
    int64_t id[2];
  };
  constexpr int64_t kBlocks = (1LL << 27) + 4, kSlots = kBlocks * 16, kRow = (1LL << 31) + 1;
  const std::vector<int32_t> nodes = {2, 5, 9};
  const std::vector<int64_t> bases = {INT32_MAX - 2, 0, 21};  // of sequences 0, 1 and 2
  auto got = everywhere([&] {
    auto cache = Device<Token>::sparse(2 * kSlots);
    auto tables = Device<int32_t>::sparse(3 * kRow), path = Device<int32_t>::sparse(3 * kRow);
    Device<int32_t> base(device::map<int32_t>(bases, [](int64_t x) { return (int32_t)x; }));
    Device<int32_t> accepted(std::vector<int32_t>{3, 0, 3});
    int32_t block = (int32_t)kBlocks;
    std::vector<int64_t> places;
    for (int64_t b : {0, 2}) {
      int64_t first = bases[b] / 16;
      for (int64_t i : {0, 1}) tables.data()[b * kRow + first + i] = --block;
      std::copy(nodes.begin(), nodes.end(), path.data() + b * kRow);
      auto slot = [&](int64_t position) {
        return tables.data()[b * kRow + position / 16] * 16LL + position % 16;
      };
      for (int64_t plane : {0, 1})
        for (int64_t j = 0; j < 3; j++) {
          cache.data()[plane * kSlots + slot(bases[b] + nodes[j])].id[0] = 10 * plane + b + j + 1;
          places.push_back(plane * kSlots + slot(bases[b] + j));
        }
    }
    KvCompactParams p{};
    p.cache = cache.data(), p.block_tables = tables.data(), p.node_base = base.data();
    p.path = path.data(), p.num_accepted = accepted.data();
    p.layers = 1, p.num_blocks = kBlocks, p.block_size = 16, p.token_bytes = sizeof(Token);
    p.B = 3, p.N = p.max_blocks = kRow;
    specfast::cuda::kv_compact(p, nullptr);
    std::vector<int64_t> ids;
    for (const Token& token : kv_cases::gather(cache, places, 1)) ids.push_back(token.id[0]);
    return ids;
  });
  CHECK_BYTES(got, (std::vector<int64_t>{1, 2, 3, 11, 12, 13, 3, 4, 5, 13, 14, 15}));
}

}  // namespace
