// How often drafts are accepted that a source gives a certain confidence, learnt while it runs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace specfast {

struct Outcome {
  double confidence;  // what is no number counts as 0
  int32_t depth;      // drafts before it
  bool accepted;
};

// log-odds = a ln c - b ln(1 - c) + const + depth (beta calibration: Kull, Silva Filho and Flach,
// 2017). The weights follow by Newton steps on a decaying window that forgets towards the prior, by
// which confidence is believed.
class Calibration {
 public:
  static constexpr int kDim = 4, kBins = 10;
  using Vector = std::array<double, kDim>;

  Calibration();

  // That a draft is accepted, given its parent; never a certainty, so that what is refuted can come
  // back.
  double log_odds(double confidence, int32_t depth) const;

  // Drafts whose parent was accepted. None: fades.
  void observe(const std::vector<Outcome>& outcomes);

  // Believes the confidence a little more: what was once refuted is not so for good.
  void fade();

  // The mean gap between what was foretold and what came, over bins of what was foretold; NaN
  // before anything was seen.
  double error() const;

  const Vector& weights() const { return weights_; }

 private:
  void step(const Vector& gradient);

  Vector weights_;
  std::array<Vector, kDim> precision_{};
  std::array<double, kBins> count_{}, surplus_{};
};

// How much luckier one request's drafts are than their like: its own log-odds, shrunk.
class Offset {
 public:
  double value() const;

  // What was foretold of drafts without the offset, and whether they were accepted.
  void observe(double log_odds, bool accepted);

  // Once a step.
  void fade();

 private:
  double surplus_ = 0, information_ = 0;
};

double sigmoid(double log_odds);

}  // namespace specfast
