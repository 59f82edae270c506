// What a test of a CUDA kernel needs, on a GPU (nvcc) or in emulation (g++): memory that notices
// writes beside it, and a run in every order of threads.
//
//   auto got = everywhere([&] {     the body runs once an order and must give the same bytes
//     Device<float> in(x), out(n);  out holds NaN
//     specfast::cuda::silu_mul(params(in, out), nullptr);
//     return out.host();
//   });
//   CHECK_BYTES(got, expected);
#pragma once
#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "../cpp/check.h"
#include "cuda/launch.cuh"
#include "poison.h"
#if !defined(__CUDACC__)
#include <sys/mman.h>
#endif

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
inline void release(void* p, size_t) { require(cudaFree(p)); }
#else
inline void synchronize() {}
// Pages that nobody touches do not exist, so this may be larger than the machine's memory.
inline void* allocate(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) emu::fail("no address space for %zu bytes", bytes);
  return p;
}
inline void release(void* p, size_t bytes) { munmap(p, bytes); }
#endif

// n elements that kernels may use; poison unless values are given.
template <class T>
class Device {
 public:
  explicit Device(size_t n) : Device(n, kSparse) { emu::poison(data(), n * sizeof(T)); }
  Device(const std::vector<T>& values) : Device(values.size()) {  // NOLINT: implicit on purpose
    std::copy(values.begin(), values.end(), data());
  }
  Device(const Device&) = delete;
  ~Device() {
    synchronize();
    ASAN_UNPOISON_MEMORY_REGION(memory_, kEdge);
    ASAN_UNPOISON_MEMORY_REGION(data() + size_, kEdge);
    if (!emu::is_poison(memory_, kEdge)) check::fail(__FILE__, __LINE__) << "a write before it\n";
    if (!emu::is_poison(data() + size_, kEdge))
      check::fail(__FILE__, __LINE__) << "a write past its " << size_ << " elements\n";
    release(memory_, total());
  }

  // n elements that are 0, of which memory holds only the pages touched: n may pass 2^32, to prove
  // that offsets are int64. Needs an overcommitting kernel (vm.overcommit_memory 0 or 1). On a GPU
  // that would be managed memory beyond its own, which may hang it.
  static Device sparse(size_t n) {
#if defined(__CUDACC__)
    if (n > (1u << 28)) throw check::Elsewhere();
#endif
    return Device(n, kSparse);
  }

  T* data() const { return reinterpret_cast<T*>(memory_ + kEdge); }
  size_t size() const { return size_; }
  std::vector<T> host() const {
    synchronize();
    return std::vector<T>(data(), data() + size_);
  }

 private:
  enum Sparse { kSparse };
  Device(size_t n, Sparse) : size_(n) {
    memory_ = static_cast<unsigned char*>(allocate(total()));
    emu::poison(memory_, kEdge);
    emu::poison(data() + n, kEdge);
    ASAN_POISON_MEMORY_REGION(memory_, kEdge);
    ASAN_POISON_MEMORY_REGION(data() + n, kEdge);
  }
  size_t total() const { return size_ * sizeof(T) + 2 * kEdge; }

  size_t size_;
  unsigned char* memory_;
};

#if !defined(__CUDACC__)
// The outputs of body() in forward, reverse and random order of threads, warps and blocks.
template <class Body>
auto in_each_order(const Body& body) {
  std::vector<decltype(body())> outputs;
  for (emu::Order order : {emu::Order::forward, emu::Order::reverse, emu::Order::random}) {
    emu::schedule.order = order;
    outputs.push_back(body());
  }
  emu::schedule = {};
  return outputs;
}
#endif

// The vector that body() gives: on a GPU of one run, in emulation of every order, which must give
// the same bytes.
template <class Body>
auto everywhere(const Body& body) {
#if defined(__CUDACC__)
  return body();
#else
  auto outputs = in_each_order(body);
  const auto &forward = outputs[0], &reverse = outputs[1], &random = outputs[2];
  CHECK_BYTES(reverse, forward);
  CHECK_BYTES(random, forward);
  return forward;
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
