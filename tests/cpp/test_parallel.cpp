#include "core/parallel.h"

#include "everywhere.h"

namespace {

using namespace everywhere;

void each_index_once(ParallelFor pool, int64_t n, int64_t grain) {
  std::vector<int> visits(n);
  pool(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) visits[i]++;
  });
  CHECK_EQ(std::count(visits.begin(), visits.end(), 1), n);
}

TEST(pools_visit_each_index_once) {
  for (ParallelFor pool : {ParallelFor(specfast::serial_for), ParallelFor(backwards_for),
                           ParallelFor(threads_for<1>), ParallelFor(threads_for<4>)})
    for (int64_t n : {0, 1, 2, 7, 64, 65})
      for (int64_t grain : {1, 3, 64}) each_index_once(pool, n, grain);
}

TEST(range_body_refers_to_its_callable) {
  int64_t total = 0;
  auto add = [&](int64_t begin, int64_t end) { total += end - begin; };
  specfast::RangeBody body = add;
  body(2, 5);
  body(5, 6);
  CHECK_EQ(total, 4);
}

TEST(tiers_are_offered_up_to_the_best) {
  using namespace specfast::cpu;
  for (Tier tier : {Tier::scalar, Tier::avx2, Tier::avx512}) {
    CHECK_EQ(set_tier(tier), tier <= best_tier());
    CHECK(current_tier() <= best_tier());
  }
  CHECK(set_tier(best_tier()));
  CHECK(strcmp(tier_name(Tier::scalar), "scalar") == 0);
}

}  // namespace
