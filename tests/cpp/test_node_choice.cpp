// The choice of nodes, on trees of any shape and confidence: what must hold whatever was learnt.
#include <cmath>
#include <random>

#include "check.h"
#include "host/node_choice.h"

using namespace specfast;

namespace {

struct Drawn {
  std::vector<int32_t> parents, lengths, sources, path, num_accepted;
  std::vector<float> confidence;
  std::vector<int64_t> seq_ids;
  std::vector<double> seconds, context;
  int64_t width;

  ProposedTrees trees() const {
    return {parents.data(), lengths.data(), confidence.data(),
            sources.data(), seq_ids.data(), (int64_t)lengths.size(),
            width};
  }
};

float any_confidence(std::mt19937& random) {
  const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, 1.0f, -3.0f, 1e30f};
  if (random() % 4 == 0) return odd[random() % 7];
  return std::uniform_real_distribution<float>(0, 1)(random);
}

Drawn draw(std::mt19937& random, int64_t batch, int64_t width, double row_seconds) {
  Drawn d;
  d.width = width;
  for (int64_t b = 0; b < batch; b++) {
    d.lengths.push_back((int32_t)(random() % (width + 1)));
    d.seq_ids.push_back((int64_t)(random() % 5));
    d.context.push_back(row_seconds * 0.1 * (b + 1));
    std::vector<int32_t> path(width, -1);
    int32_t deepest = -1, count = 0;
    for (int32_t i = 0; i < width; i++) {
      d.parents.push_back(i < d.lengths[b] ? (int32_t)(random() % (i + 1)) - 1 : -1);
      d.confidence.push_back(any_confidence(random));
      d.sources.push_back((int32_t)(random() % 2));
      if (i < d.lengths[b] && d.parents.back() == deepest && random() % 2) {
        deepest = i;
        path[count++] = i;
      }
    }
    d.path.insert(d.path.end(), path.begin(), path.end());
    d.num_accepted.push_back(count);
  }
  for (int64_t i = 0; i <= batch * width; i++) d.seconds.push_back(1 + row_seconds * (double)i);
  return d;
}

}  // namespace

TEST(what_is_kept_holds_the_parent_of_each) {
  std::mt19937 random(1);
  NodeChoice choice(2);
  int64_t num_kept = 0, num_left_out = 0;
  for (int round = 0; round < 2000; round++) {
    int64_t batch = 1 + random() % 4, width = random() % 9;
    Drawn d = draw(random, batch, width, round % 3 * 0.2);
    auto keep = choice.best(d.trees(), {d.seconds.data(), d.context.data(), batch});
    CHECK_EQ((int64_t)keep.size(), batch * width);
    for (int64_t b = 0; b < batch; b++)
      for (int64_t i = 0; i < width; i++) {
        int64_t node = b * width + i;
        if (!keep[node]) {
          num_left_out += i < d.lengths[b];
          continue;
        }
        num_kept++;
        CHECK(i < d.lengths[b]);
        CHECK(d.parents[node] < 0 || keep[b * width + d.parents[node]]);
      }
    choice.observe(d.trees(), d.path.data(), d.num_accepted.data());
    if (round % 50 == 0) choice.release(round % 5);
  }
  CHECK(num_kept > 500 && num_left_out > 500);
  CHECK(std::isfinite(choice.calibration_error()));
}

TEST(rows_that_cost_nothing_are_all_kept) {
  std::mt19937 random(2);
  NodeChoice choice(2);
  for (int round = 0; round < 300; round++) {
    Drawn d = draw(random, 3, 4, 0.0);
    auto keep = choice.best(d.trees(), {d.seconds.data(), d.context.data(), 3});
    for (int64_t b = 0; b < 3; b++)
      for (int64_t i = 0; i < d.lengths[b]; i++) CHECK(keep[b * 4 + i]);
    choice.observe(d.trees(), d.path.data(), d.num_accepted.data());
  }
}

TEST(nothing_learnt_is_no_error) {
  NodeChoice choice(3);
  CHECK(std::isnan(choice.calibration_error()));
  choice.release(7);
}
