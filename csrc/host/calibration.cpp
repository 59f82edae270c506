#include "host/calibration.h"

#include <algorithm>
#include <cmath>

namespace specfast {
namespace {

constexpr double kForgetting = 0.995;  // of what was seen, a step that had drafts
// The weights as they are where confidence is right, and how sure that is.
constexpr Calibration::Vector kPrior{1, 1, 0, 0}, kPriorPrecision{4, 4, 4, 16};
constexpr double kLowest = 1e-3, kSurest = 7;  // a confidence; log-odds
constexpr double kOffsetPrecision = 40;        // in drafts that were as likely as not

using Vector = Calibration::Vector;
using Matrix = std::array<Vector, Calibration::kDim>;

Vector features(double confidence, int32_t depth) {
  double c = std::min(std::fmax(confidence, kLowest), 1 - kLowest);  // fmax takes no NaN
  return {std::log(c), -std::log1p(-c), 1, std::log1p(depth)};
}

// Of the likelihood, for a Newton step: where the outcome is a surprise, that of a coin, or one
// that was thought certain would throw the weights anywhere.
double curvature(double probability, bool accepted) {
  return std::max(probability * (1 - probability), 0.25 * std::abs(accepted - probability));
}

// x of a . x = b, a symmetric and positive definite: by Cholesky.
Vector solve(Matrix a, Vector b) {
  constexpr int n = Calibration::kDim;
  for (int i = 0; i < n; i++)
    for (int j = 0; j <= i; j++) {
      double sum = a[i][j];
      for (int k = 0; k < j; k++) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(sum) : sum / a[j][j];
    }
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < i; k++) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (int i = n - 1; i >= 0; i--) {
    for (int k = i + 1; k < n; k++) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

double sigmoid(double log_odds) { return 0.5 * (1 + std::tanh(0.5 * log_odds)); }

Calibration::Calibration() : weights_(kPrior) {
  for (int i = 0; i < kDim; i++) precision_[i][i] = kPriorPrecision[i];
}

double Calibration::log_odds(double confidence, int32_t depth) const {
  Vector x = features(confidence, depth);
  double sum = 0;
  for (int i = 0; i < kDim; i++) sum += weights_[i] * x[i];
  return std::clamp(sum, -kSurest, kSurest);
}

void Calibration::observe(const std::vector<Outcome>& outcomes) {
  if (outcomes.empty()) return fade();
  for (int bin = 0; bin < kBins; bin++) {
    count_[bin] *= kForgetting;
    surplus_[bin] *= kForgetting;
  }
  Vector gradient{};
  Matrix information{};
  for (const Outcome& o : outcomes) {
    Vector x = features(o.confidence, o.depth);
    double p = sigmoid(log_odds(o.confidence, o.depth)), c = curvature(p, o.accepted);
    int bin = std::min(static_cast<int>(p * kBins), kBins - 1);
    count_[bin] += 1;
    surplus_[bin] += o.accepted - p;
    for (int i = 0; i < kDim; i++) {
      gradient[i] += x[i] * (o.accepted - p);
      for (int j = 0; j < kDim; j++) information[i][j] += c * x[i] * x[j];
    }
  }
  for (int i = 0; i < kDim; i++)
    for (int j = 0; j < kDim; j++) precision_[i][j] += information[i][j] / kForgetting;
  step(gradient);
}

void Calibration::fade() { step({}); }

void Calibration::step(const Vector& gradient) {
  Vector towards = gradient;
  for (int i = 0; i < kDim; i++) {
    double pull = (1 - kForgetting) * kPriorPrecision[i];
    for (int j = 0; j < kDim; j++) precision_[i][j] *= kForgetting;
    precision_[i][i] += pull;
    towards[i] += pull * (kPrior[i] - weights_[i]);
  }
  Vector change = solve(precision_, towards);
  for (int i = 0; i < kDim; i++) weights_[i] += change[i];
}

double Calibration::error() const {
  double count = 0, gap = 0;
  for (int bin = 0; bin < kBins; bin++) {
    count += count_[bin];
    gap += std::abs(surplus_[bin]);
  }
  return count ? gap / count : std::nan("");
}

double Offset::value() const { return surplus_ / (information_ + kOffsetPrecision / 4); }

void Offset::observe(double log_odds, bool accepted) {
  double own = value(), p = sigmoid(log_odds + own), c = curvature(p, accepted);
  surplus_ += accepted - p + c * own;
  information_ += c;
}

void Offset::fade() {
  surplus_ *= kForgetting;
  information_ *= kForgetting;
}

}  // namespace specfast
