#include "host/node_choice.h"

#include <algorithm>
#include <cmath>

namespace specfast {
namespace {

int source_of(const ProposedTrees& trees, int64_t node) {
  return trees.sources ? trees.sources[node] : 0;
}

}  // namespace

std::vector<uint8_t> NodeChoice::best(const ProposedTrees& trees, const StepCosts& costs) {
  std::vector<Candidate> order = by_survival(trees);
  double emitted = costs.num_decoding, context = 0, best_rate = emitted / costs.seconds[0];
  size_t count = 0;
  for (size_t i = 0; i < order.size(); i++) {
    emitted += order[i].survival;
    context += costs.context_seconds[order[i].node / trees.width];
    double rate = emitted / (costs.seconds[i + 1] + context);
    if (rate > best_rate) {
      best_rate = rate;
      count = i + 1;
    }
  }
  std::vector<uint8_t> keep(trees.batch * trees.width);
  for (size_t i = 0; i < count; i++) keep[order[i].node] = 1;
  fade(trees, keep);
  return keep;
}

void NodeChoice::observe(const ProposedTrees& trees, const int32_t* path,
                         const int32_t* num_accepted) {
  std::vector<std::vector<Outcome>> outcomes(calibrations_.size());
  std::vector<int32_t> depth(trees.width);
  std::vector<uint8_t> accepted(trees.width);
  std::vector<std::pair<double, bool>> own;
  for (int64_t b = 0; b < trees.batch; b++) {
    int64_t first = b * trees.width;
    std::fill(accepted.begin(), accepted.end(), 0);
    for (int32_t i = 0; i < num_accepted[b]; i++) accepted[path[first + i]] = 1;
    own.clear();
    for (int32_t i = 0; i < trees.lengths[b]; i++) {
      int64_t node = first + i;
      int32_t parent = trees.parents[node];
      depth[i] = parent < 0 ? 0 : depth[parent] + 1;
      if (parent >= 0 && !accepted[parent]) continue;
      int source = source_of(trees, node);
      outcomes[source].push_back({trees.confidence[node], depth[i], accepted[i] != 0});
      own.emplace_back(calibrations_[source].log_odds(trees.confidence[node], depth[i]),
                       accepted[i] != 0);
    }
    if (own.empty()) continue;
    Offset& offset = offsets_[trees.seq_ids[b]];
    offset.fade();
    for (auto [log_odds, was_accepted] : own) offset.observe(log_odds, was_accepted);
  }
  for (size_t s = 0; s < calibrations_.size(); s++) calibrations_[s].observe(outcomes[s]);
}

double NodeChoice::calibration_error() const {
  double largest = std::nan("");
  for (const Calibration& c : calibrations_) largest = std::fmax(largest, c.error());
  return largest;
}

// A parent survives at least as often as its child, and comes before it where they are even.
std::vector<NodeChoice::Candidate> NodeChoice::by_survival(const ProposedTrees& trees) const {
  std::vector<Candidate> found;
  std::vector<double> reach(trees.width);
  std::vector<int32_t> depth(trees.width);
  for (int64_t b = 0; b < trees.batch; b++) {
    auto offset = offsets_.find(trees.seq_ids[b]);
    double luck = offset == offsets_.end() ? 0 : offset->second.value();
    for (int32_t i = 0; i < trees.lengths[b]; i++) {
      int64_t node = b * trees.width + i;
      int32_t parent = trees.parents[node];
      depth[i] = parent < 0 ? 0 : depth[parent] + 1;
      reach[i] = (parent < 0 ? 1 : reach[parent]) * sigmoid(log_odds(trees, node, depth[i]) + luck);
      found.push_back({reach[i], node});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.survival > b.survival; });
  return found;
}

double NodeChoice::log_odds(const ProposedTrees& trees, int64_t node, int32_t depth) const {
  return calibrations_[source_of(trees, node)].log_odds(trees.confidence[node], depth);
}

// Doubts the verdict on what is not tested any more, so that it is some day.
void NodeChoice::fade(const ProposedTrees& trees, const std::vector<uint8_t>& keep) {
  bool any = false;
  for (int64_t b = 0; b < trees.batch; b++) {
    auto first = keep.begin() + b * trees.width;
    bool some = std::any_of(first, first + trees.width, [](uint8_t k) { return k != 0; });
    any |= some;
    if (some || trees.lengths[b] == 0) continue;
    if (auto offset = offsets_.find(trees.seq_ids[b]); offset != offsets_.end())
      offset->second.fade();
  }
  if (any) return;
  for (Calibration& c : calibrations_) c.fade();
}

}  // namespace specfast
