// Which drafted nodes to verify: those with which the batch emits most tokens a second.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "host/calibration.h"

namespace specfast {

// The trees of a batch [B, N], padded behind their lengths [B]; a parent comes before its children.
// sources: who drafted each node, null where only one does. seq_ids [B].
struct ProposedTrees {
  const int32_t *parents, *lengths;
  const float* confidence;
  const int32_t* sources;
  const int64_t* seq_ids;
  int64_t batch, width;
};

// A step: seconds [nodes + 1] by how many nodes it has; context_seconds [B]: what each node of a
// sequence adds by the text before it; num_decoding: tokens that it emits without drafts.
struct StepCosts {
  const double *seconds, *context_seconds;
  int64_t num_decoding;
};

// Survival is calibrated by source, and a request's own luck comes on top: a new one starts from
// what all had.
class NodeChoice {
 public:
  explicit NodeChoice(int num_sources) : calibrations_(num_sources) {}

  // [B, N]: nodes by their survival, likeliest first, up to where tokens a second are most: the
  // best of all choices that hold the parent of each, whatever the steps in the cost of rows.
  std::vector<uint8_t> best(const ProposedTrees& trees, const StepCosts& costs);

  // Learns from the nodes that the target decided: path [B, N], num_accepted [B].
  void observe(const ProposedTrees& trees, const int32_t* path, const int32_t* num_accepted);

  void release(int64_t seq_id) { offsets_.erase(seq_id); }

  // The sources' largest; NaN before anything was seen.
  double calibration_error() const;

 private:
  struct Candidate {
    double survival;
    int64_t node;
  };
  std::vector<Candidate> by_survival(const ProposedTrees& trees) const;
  double log_odds(const ProposedTrees& trees, int64_t node, int32_t depth) const;
  void fade(const ProposedTrees& trees, const std::vector<uint8_t>& keep);

  std::vector<Calibration> calibrations_;
  std::unordered_map<int64_t, Offset> offsets_;
};

}  // namespace specfast
