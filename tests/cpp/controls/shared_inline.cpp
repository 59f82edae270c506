// What tier_symbols.sh must refuse: an inline function that every tier would define.
#include <cstdint>

namespace specfast::cpu {
__attribute__((noinline)) inline int64_t shared_by_all_tiers(int64_t n) { return n * n; }
namespace scalar {
int64_t caller(int64_t n) { return shared_by_all_tiers(n) + 1; }
}  // namespace scalar
}  // namespace specfast::cpu
