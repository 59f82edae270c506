#include <cmath>

#include "kv_cases.h"

namespace {

using namespace kv_cases;
using device::Device;
using device::everywhere;
using specfast::RopeKvAppendParams;

constexpr int64_t kPositions = 50;

struct Shape {
  int64_t heads, kv_heads, head_dim, rotary_dim, gap = 0;
  bool q_norm = false, k_norm = false;
  int64_t row_size() const { return (heads + 2 * kv_heads) * head_dim; }
};

std::vector<float> angles(int64_t rotary_dim) {
  std::vector<float> table;
  for (int64_t position = 0; position < kPositions; position++)
    for (int64_t d = 0; d < rotary_dim; d++) {
      double angle = (double)position * std::pow(1e4, -2.0 * (d % (rotary_dim / 2)) / rotary_dim);
      table.push_back((float)(d < rotary_dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  return table;
}

template <class T, class Element>
struct Problem {
  RopeKvAppendParams params{};
  std::vector<T> qkv;
  std::vector<float> cos_sin, q_norm, k_norm;
  std::vector<int32_t> positions, status;
  std::vector<int64_t> slots;
  std::vector<Element> cache;

  Problem(int64_t M, const Shape& shape, std::mt19937& random) {
    int64_t block_size = 1 + random() % 20, num_blocks = M / block_size + 2;
    params.M = M, params.H = shape.heads, params.eps = 1e-5f;
    params.num_positions = kPositions, params.rotary_dim = shape.rotary_dim;
    params.qkv_stride = shape.row_size() + shape.gap;
    params.cache = {nullptr,        num_blocks,     block_size,
                    shape.kv_heads, shape.head_dim, dtype<Element>};
    qkv = values<T>((size_t)(M * params.qkv_stride), random, 1000);
    cos_sin = angles(shape.rotary_dim);
    if (shape.q_norm) q_norm = device::normal((size_t)shape.head_dim, (unsigned)random());
    if (shape.k_norm) k_norm = device::normal((size_t)shape.head_dim, (unsigned)random());
    slots = random_slots(M, num_blocks * block_size, random);
    for (int64_t row = 0; row < M; row++) {
      positions.push_back((int32_t)(random() % (kPositions + 5)) - 5);
      if (positions.back() < -1) positions.back() = -1;
      status.push_back((int32_t)(random() % 8));
    }
    size_t num_slots = (size_t)(num_blocks * block_size);
    cache = values<Element>(2 * num_slots * (size_t)(shape.kv_heads * shape.head_dim), random);
  }
  size_t q_size() const { return (size_t)(params.M * params.H * params.cache.head_dim); }

  // Runs the op on copies of the inputs: q_out, the cache, status.
  template <class Run, class Activation>
  std::vector<unsigned char> run(const Run& op, const std::vector<Activation>& in) const {
    Device<Activation> d_qkv(in), d_q(q_size());
    Device<float> d_cos_sin(cos_sin), d_q_norm(q_norm), d_k_norm(k_norm);
    Device<int32_t> d_positions(positions), d_status(status);
    Device<int64_t> d_slots(slots);
    Device<Element> d_cache(cache);
    RopeKvAppendParams p = params;
    p.dtype = dtype<Activation>;
    p.qkv = reinterpret_cast<const float*>(d_qkv.data());
    p.q_out = reinterpret_cast<float*>(d_q.data());
    p.cos_sin = d_cos_sin.data(), p.positions = d_positions.data(), p.slots = d_slots.data();
    p.q_norm = q_norm.empty() ? nullptr : d_q_norm.data();
    p.k_norm = k_norm.empty() ? nullptr : d_k_norm.data();
    p.status = d_status.data(), p.cache.data = d_cache.data();
    op(p);
    return bytes(narrowed<T>(with_one_nan(widened(d_q.host()))), d_cache.host(), d_status.host());
  }
  std::vector<unsigned char> on_device() const {
    auto op = [](const RopeKvAppendParams& p) { specfast::cuda::rope_kv_append(p, nullptr); };
    return everywhere([&] { return run(op, qkv); });
  }
  std::vector<unsigned char> on_cpu() const {
    auto op = [](const RopeKvAppendParams& p) {
      specfast::cpu::rope_kv_append(p, specfast::serial_for);
    };
    return run(op, widened(qkv));
  }
};

// Whole and partial rotary, halves off the lanes, none; rows that begin anywhere within 16 bytes;
// fewer heads than a block's and many more.
constexpr Shape kShapes[] = {
    {9, 3, 64, 64},
    {8, 2, 128, 128, 5, true, true},
    {4, 2, 80, 32, 1, true},
    {2, 1, 96, 40},
    {2, 2, 16, 2, 3, false, true},
    {3, 1, 256, 256, 0, true, true},
    {2, 1, 32, 0},
    {1, 1, 48, 18, 2},
};

TEST(rope_kv_append_gives_the_bytes_of_the_cpu) {
  std::mt19937 random(1);
  for (const Shape& shape : kShapes)
    for (int64_t M : {0, 1, 19})
      each_dtype([&](auto t, auto element) {
        Problem<decltype(t), decltype(element)> problem(M, shape, random);
        CHECK_BYTES(problem.on_device(), problem.on_cpu());
      });
}

TEST(rope_kv_append_gives_the_bytes_of_the_cpu_at_random) {
  std::mt19937 random(2);
  auto any = [&](int64_t first, int64_t last) { return between(first, last, random); };
  for (int i = 0; i < 25; i++)
    each_dtype([&](auto t, auto element) {
      int64_t kv_heads = any(1, 3), head_dim = 16 * any(1, 16);
      Shape shape{
          kv_heads * any(1, 5), kv_heads,      head_dim, 2 * any(0, head_dim / 2), any(0, 9),
          any(0, 1) == 1,       any(0, 1) == 1};
      Problem<decltype(t), decltype(element)> problem(any(1, 70), shape, random);
      CHECK_BYTES(problem.on_device(), problem.on_cpu());
    });
}

// What the CPU op's caller refuses at the door is padding, or stores nothing.
TEST(rope_kv_append_survives_junk) {
  std::mt19937 random(3);
  each_dtype([&](auto t, auto element) {
    Problem<decltype(t), decltype(element)> problem(12, {4, 2, 32, 32}, random);
    auto padded = problem;
    int64_t num_slots = problem.params.cache.num_blocks * problem.params.cache.block_size;
    std::vector<int64_t> slots = {-2, num_slots, INT64_MIN, INT64_MAX, 1LL << 40};
    std::vector<int32_t> positions = {-2, kPositions, INT32_MIN, INT32_MAX, 1 << 20};
    for (size_t i = 0; i < 5; i++) {
      problem.slots[i] = slots[i], padded.slots[i] = -1;
      problem.positions[i + 6] = positions[i], padded.positions[i + 6] = -1;
    }
    CHECK_BYTES(problem.on_device(), padded.on_cpu());
  });
}

TEST(rope_kv_append_without_rotary_takes_any_position) {
  std::mt19937 random(4);
  each_dtype([&](auto t, auto element) {
    Problem<decltype(t), decltype(element)> problem(3, {2, 1, 32, 0}, random);
    problem.positions = {INT32_MAX, kPositions, 0};
    CHECK_BYTES(problem.on_device(), problem.on_cpu());
  });
}

// Rows of qkv and of the table, and tokens of the cache, from element 0, beyond 2^31 and beyond
// 2^32: the bytes of the same rows close together.
TEST(rope_kv_append_reaches_beyond_32_bits) {
  std::mt19937 random(5);
  Problem<Bf16, Bf16> close(3, {4, 8, 256, 64}, random);
  close.positions = {0, 1, 2}, close.slots = {0, 1, 2};
  close.params.cache.num_blocks = 3, close.params.cache.block_size = 1;
  close.cache.resize(2 * 3 * 8 * 256);
  constexpr int64_t kToken = 8 * 256, kSlots = (1LL << 21) + 16, kStride = (1LL << 31) + 8;
  const std::vector<int32_t> positions = {0, (1 << 25) + 1, (1 << 26) + 7};
  const std::vector<int64_t> slots = {3, (1LL << 20) + 1, kSlots - 1};
  const std::vector<int64_t> rows = {0, kStride, 2 * kStride};
  const std::vector<float> table(close.cos_sin.begin(), close.cos_sin.begin() + 3 * 64);
  std::vector<int64_t> angles, places;
  for (int64_t position : positions) angles.push_back(position * 64);
  for (int64_t plane : {0, 1})
    for (int64_t slot : slots) places.push_back((plane * kSlots + slot) * kToken);
  auto got = everywhere([&] {
    auto qkv = Device<Bf16>::sparse(2 * kStride + close.params.qkv_stride);
    auto cos_sin = Device<float>::sparse(angles[2] + 64);
    auto cache = Device<Bf16>::sparse(2 * kSlots * kToken);
    Device<Bf16> q(close.q_size());
    Device<int32_t> d_positions(positions), status(close.status);
    Device<int64_t> d_slots(slots);
    scatter(close.qkv, rows, qkv), scatter(table, angles, cos_sin);
    RopeKvAppendParams p = close.params;
    p.qkv = reinterpret_cast<const float*>(qkv.data()), p.qkv_stride = kStride;
    p.q_out = reinterpret_cast<float*>(q.data()), p.dtype = DType::bf16;
    p.cos_sin = cos_sin.data(), p.num_positions = positions[2] + 1;
    p.positions = d_positions.data(), p.slots = d_slots.data(), p.status = status.data();
    p.cache = {cache.data(), kSlots / 16, 16, 8, 256, DType::bf16};
    specfast::cuda::rope_kv_append(p, nullptr);
    return bytes(q.host(), gather(cache, places, kToken), status.host());
  });
  CHECK_BYTES(got, close.on_cpu());
}

}  // namespace
