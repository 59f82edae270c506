// Runs a kernel on every tier and on pools that cut and order the work differently: all must give
// the same bytes.
#pragma once
#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "kernels.h"

namespace everywhere {

using specfast::ParallelFor;
using specfast::RangeBody;
using specfast::cpu::Tier;

template <int Threads>
void threads_for(int64_t n, int64_t grain, RangeBody body) {
  int64_t chunk = std::max(grain, (n + Threads - 1) / Threads);
  std::vector<std::thread> threads;
  for (int64_t begin = 0; begin < n; begin += chunk)
    threads.emplace_back([=] { body(begin, std::min(n, begin + chunk)); });
  for (std::thread& thread : threads) thread.join();
}

// The smallest chunks a caller may cut, the last one first.
inline void backwards_for(int64_t n, int64_t grain, RangeBody body) {
  for (int64_t begin = (n - 1) / grain * grain; n > 0 && begin >= 0; begin -= grain)
    body(begin, std::min(n, begin + grain));
}

inline std::vector<Tier> tiers() {
  std::vector<Tier> all;
  for (Tier tier : {Tier::scalar, Tier::avx2, Tier::avx512})
    if (tier <= specfast::cpu::best_tier()) all.push_back(tier);
  return all;
}

// run(parallel_for) returns the kernel's output; the scalar tier's serial one is returned.
template <class Run>
auto same_bytes(Run run) {
  specfast::cpu::set_tier(Tier::scalar);
  auto expected = run(ParallelFor(specfast::serial_for));
  for (Tier tier : tiers()) {
    CHECK(specfast::cpu::set_tier(tier));
    for (ParallelFor pool : {ParallelFor(specfast::serial_for), ParallelFor(backwards_for),
                             ParallelFor(threads_for<2>), ParallelFor(threads_for<3>)}) {
      auto got = run(pool);
      CHECK_BYTES(got, expected);
    }
  }
  return expected;
}

inline std::vector<float> normal(size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> law;
  std::vector<float> values(n);
  for (float& v : values) v = law(generator);
  return values;
}

}  // namespace everywhere
