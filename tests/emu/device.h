// What a test of a CUDA kernel needs, on a GPU (nvcc) or in emulation (g++): memory that notices
// writes beside it, and a run in every order of threads.
//
//   Device<float> x(values), out(n);                  out holds NaN
//   auto got = everywhere([&] {                       the body runs once an order, and must give
//   the
//     Device<float> out(n);                           same bytes each time
//     specfast::cuda::silu_mul(params(x, out), nullptr);
//     return out.host();
//   });
//   CHECK_BYTES(got, expected);
#pragma once
#include <algorithm>
#include <random>
#include <vector>

#include "../cpp/check.h"
#include "cuda/launch.cuh"
#include "poison.h"

namespace device {

constexpr size_t kEdge = 256;  // guard bytes on either side; also the alignment of cudaMalloc

#if defined(__CUDACC__)
inline void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::cout << cudaGetErrorString(error) << std::endl;
  std::exit(1);
}
inline void synchronize() { require(cudaDeviceSynchronize()); }
inline void* allocate(size_t bytes) {
  void* p;
  require(cudaMallocManaged(&p, bytes));
  return p;
}
inline void release(void* p) { require(cudaFree(p)); }
#else
inline void synchronize() {}
inline void* allocate(size_t bytes) {
  return std::aligned_alloc(kEdge, (bytes + kEdge - 1) / kEdge * kEdge);
}
inline void release(void* p) { std::free(p); }
#endif

// n elements that a kernel may use, poisoned unless values are given.
template <class T>
class Device {
 public:
  explicit Device(size_t n) : size_(n) {
    memory_ = static_cast<unsigned char*>(allocate(2 * kEdge + bytes()));
    emu::poison(memory_, kEdge);
    emu::poison(data(), bytes());
    emu::poison(memory_ + kEdge + bytes(), kEdge);
    ASAN_POISON_MEMORY_REGION(memory_, kEdge);
    ASAN_POISON_MEMORY_REGION(memory_ + kEdge + bytes(), kEdge);
  }
  Device(const std::vector<T>& values) : Device(values.size()) {  // NOLINT: implicit on purpose
    std::copy(values.begin(), values.end(), data());
  }
  Device(const Device&) = delete;
  ~Device() {
    synchronize();
    ASAN_UNPOISON_MEMORY_REGION(memory_, 2 * kEdge + bytes());
    CHECK(emu::is_poison(memory_, kEdge));                    // written before its begin
    CHECK(emu::is_poison(memory_ + kEdge + bytes(), kEdge));  // written past its end
    release(memory_);
  }

  T* data() const { return reinterpret_cast<T*>(memory_ + kEdge); }
  size_t size() const { return size_; }
  std::vector<T> host() const {
    synchronize();
    return std::vector<T>(data(), data() + size_);
  }

 private:
  size_t bytes() const { return size_ * sizeof(T); }
  size_t size_;
  unsigned char* memory_;
};

// The outputs of body() in forward, reverse and random order of threads, blocks and warps, which
// must be the same bytes; on a GPU body runs once. body returns a vector.
template <class Body>
auto everywhere(const Body& body) {
#if defined(__CUDACC__)
  return body();
#else
  auto in_order = [&](emu::Order order) {
    emu::schedule.order = order;
    auto output = body();
    emu::schedule = {};
    return output;
  };
  auto expected = in_order(emu::Order::forward);
  auto in_reverse = in_order(emu::Order::reverse), at_random = in_order(emu::Order::random);
  CHECK_BYTES(in_reverse, expected);
  CHECK_BYTES(at_random, expected);
  return expected;
#endif
}

// --- test data ---
inline std::vector<float> normal(size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> law;
  std::vector<float> values(n);
  for (float& v : values) v = law(generator);
  return values;
}

template <class To, class From, class Convert>
std::vector<To> map(const std::vector<From>& values, Convert convert) {
  std::vector<To> result;
  for (const From& v : values) result.push_back(convert(v));
  return result;
}

}  // namespace device
