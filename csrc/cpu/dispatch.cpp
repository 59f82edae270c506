// Chooses the SIMD tier once, at load, and forwards every launcher to it.
#include <atomic>

#include "kernels.h"

namespace specfast::cpu {
namespace {

bool runs(Tier tier) {
#if defined(SPECFAST_X86_TIERS)
  __builtin_cpu_init();
  switch (tier) {
    case Tier::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("fma");
    case Tier::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Tier::scalar:
      return true;
  }
#endif
  return tier == Tier::scalar;
}

std::atomic<Tier>& active_tier() {
  static std::atomic<Tier> tier{best_tier()};
  return tier;
}

}  // namespace

Tier best_tier() {
  if (runs(Tier::avx512)) return Tier::avx512;
  return runs(Tier::avx2) ? Tier::avx2 : Tier::scalar;
}

Tier current_tier() { return active_tier().load(std::memory_order_relaxed); }

bool set_tier(Tier tier) {
  if (!runs(tier)) return false;
  active_tier().store(tier, std::memory_order_relaxed);
  return true;
}

const char* tier_name(Tier tier) {
  switch (tier) {
    case Tier::avx512:
      return "avx512";
    case Tier::avx2:
      return "avx2";
    case Tier::scalar:
      return "scalar";
  }
  return "unknown";
}

#if defined(SPECFAST_X86_TIERS)
#define SPECFAST_FORWARD(op, Params)                   \
  void op(const Params& p, ParallelFor parallel_for) { \
    switch (current_tier()) {                          \
      case Tier::avx512:                               \
        return avx512::op(p, parallel_for);            \
      case Tier::avx2:                                 \
        return avx2::op(p, parallel_for);              \
      case Tier::scalar:                               \
        return scalar::op(p, parallel_for);            \
    }                                                  \
  }
#else
#define SPECFAST_FORWARD(op, Params) \
  void op(const Params& p, ParallelFor parallel_for) { return scalar::op(p, parallel_for); }
#endif
SPECFAST_CPU_OPS(SPECFAST_FORWARD)

}  // namespace specfast::cpu
