#include "kv_cases.h"

namespace {

using namespace kv_cases;
using device::Device;
using device::everywhere;
using specfast::KvAppendParams;

struct Shape {
  int64_t kv_heads, head_dim, block_size, k_gap = 0, v_gap = 0;
  int64_t token_size() const { return kv_heads * head_dim; }
};

template <class T, class Element>
struct Problem {
  KvAppendParams params{};
  std::vector<T> k, v;
  std::vector<int64_t> slots;
  std::vector<int32_t> status;
  std::vector<Element> cache;

  Problem(int64_t M, const Shape& shape, std::mt19937& random) {
    int64_t num_blocks = M / shape.block_size + 2;
    params.M = M;
    params.k_stride = shape.token_size() + shape.k_gap;
    params.v_stride = shape.token_size() + shape.v_gap;
    params.cache = {nullptr,        num_blocks,     shape.block_size,
                    shape.kv_heads, shape.head_dim, dtype<Element>};
    k = values<T>((size_t)(M * params.k_stride), random);
    v = values<T>((size_t)(M * params.v_stride), random);
    slots = random_slots(M, num_blocks * shape.block_size, random);
    for (int64_t row = 0; row < M; row++) status.push_back((int32_t)(random() % 8));
    cache =
        values<Element>((size_t)(2 * num_blocks * shape.block_size * shape.token_size()), random);
  }

  KvAppendParams with(const void* k, const void* v, const int64_t* slots, int32_t* status,
                      void* cache) const {
    KvAppendParams p = params;
    p.k = static_cast<const float*>(k), p.v = static_cast<const float*>(v);
    p.slots = slots, p.status = status, p.cache.data = cache;
    return p;
  }
  std::vector<unsigned char> on_device() const {
    return everywhere([&] {
      Device<T> d_k(k), d_v(v);
      Device<int64_t> d_slots(slots);
      Device<int32_t> d_status(status);
      Device<Element> d_cache(cache);
      KvAppendParams p =
          with(d_k.data(), d_v.data(), d_slots.data(), d_status.data(), d_cache.data());
      p.dtype = dtype<T>;
      specfast::cuda::kv_append(p, nullptr);
      return bytes(d_cache.host(), d_status.host());
    });
  }
  std::vector<unsigned char> on_cpu() const {
    std::vector<float> wide_k = widened(k), wide_v = widened(v);
    std::vector<Element> out = cache;
    std::vector<int32_t> out_status = status;
    specfast::cpu::kv_append(
        with(wide_k.data(), wide_v.data(), slots.data(), out_status.data(), out.data()),
        specfast::serial_for);
    return bytes(out, out_status);
  }
};

// Rows that begin anywhere within 16 bytes, and tokens of more than a block of threads.
TEST(kv_append_gives_the_bytes_of_the_cpu) {
  std::mt19937 random(1);
  for (Shape shape : {Shape{1, 16, 1}, Shape{3, 64, 16, 384, 192}, Shape{2, 80, 5, 1, 3},
                      Shape{8, 128, 16, 7}, Shape{5, 256, 8}})
    for (int64_t M : {0, 1, 2, 33})
      each_dtype([&](auto t, auto element) {
        Problem<decltype(t), decltype(element)> problem(M, shape, random);
        CHECK_BYTES(problem.on_device(), problem.on_cpu());
      });
}

TEST(kv_append_gives_the_bytes_of_the_cpu_at_random) {
  std::mt19937 random(2);
  auto any = [&](int64_t first, int64_t last) { return between(first, last, random); };
  for (int i = 0; i < 40; i++)
    each_dtype([&](auto t, auto element) {
      Shape shape{any(1, 8), 16 * any(1, 16), any(1, 20), any(0, 9), any(0, 9)};
      Problem<decltype(t), decltype(element)> problem(any(1, 70), shape, random);
      CHECK_BYTES(problem.on_device(), problem.on_cpu());
    });
}

TEST(kv_append_stores_nothing_outside_the_cache) {
  std::mt19937 random(3);
  each_dtype([&](auto t, auto element) {
    Problem<decltype(t), decltype(element)> problem(9, {2, 32, 4}, random);
    auto padded = problem;
    int64_t num_slots = problem.params.cache.num_blocks * 4;
    std::vector<int64_t> junk = {-2, num_slots, num_slots + 1, INT64_MIN, INT64_MAX, 1LL << 40};
    for (size_t i = 0; i < junk.size(); i++) problem.slots[i] = junk[i], padded.slots[i] = -1;
    CHECK_BYTES(problem.on_device(), padded.on_cpu());
  });
}

// Rows of k and v, and tokens of the cache, from element 0, beyond 2^31 and beyond 2^32.
TEST(kv_append_reaches_beyond_32_bits) {
  constexpr int64_t kToken = 8 * 256, kSlots = (1LL << 21) + 16, kStride = (1LL << 31) + 8;
  const std::vector<int64_t> slots = {3, (1LL << 20) + 1, kSlots - 1};
  std::vector<int64_t> rows = {0, kStride, 2 * kStride}, k_places, v_places;
  for (int64_t slot : slots)
    k_places.push_back(slot * kToken), v_places.push_back((kSlots + slot) * kToken);
  auto k = narrowed<Bf16>(device::normal(3 * kToken, 5)), v = narrowed<Bf16>(widened(k));
  std::reverse(v.begin(), v.end());
  auto got = everywhere([&] {
    auto d_k = Device<Bf16>::sparse(2 * kStride + kToken), d_v = Device<Bf16>::sparse(d_k.size());
    auto cache = Device<Bf16>::sparse(2 * kSlots * kToken);
    Device<int64_t> d_slots(slots);
    Device<int32_t> status(std::vector<int32_t>(3));
    scatter(k, rows, d_k), scatter(v, rows, d_v);
    KvAppendParams p{};
    p.k = reinterpret_cast<const float*>(d_k.data());
    p.v = reinterpret_cast<const float*>(d_v.data());
    p.slots = d_slots.data(), p.status = status.data(), p.dtype = DType::bf16;
    p.M = 3, p.k_stride = p.v_stride = kStride;
    p.cache = {cache.data(), kSlots / 16, 16, 8, 256, DType::bf16};
    specfast::cuda::kv_append(p, nullptr);
    return bytes(gather(cache, k_places, kToken), gather(cache, v_places, kToken));
  });
  CHECK_BYTES(got, bytes(k, v));
}

}  // namespace
