#include "host/suffix_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace specfast {
namespace {

constexpr int32_t kLeastShare = 32;        // of the occurrences, a 32nd: less often is unlikely
constexpr float kNegligible = 1 / 256.0f;  // what shorter matches could still add
constexpr float kMeanGumbel = 0.5772157f;

// Fitted on answers of the demo model to training prompts, greedy and at T = 1: sampled text
// repeats itself less, and how a perturbed estimate ranks says less than how perturbed logits do.
constexpr float kDoubtPerTemperature = 2;
constexpr float kSuffixTau = 1.5f;

struct Context {
  const SuffixSource* source;
  SuffixTree::Point point;

  int32_t num_continued() const { return source->tree->num_continued(point); }
  float doubt() const {
    return (*source->doubt)[std::min<size_t>(point.depth, source->doubt->size() - 1)];
  }
};

struct Candidate {
  int32_t token;
  float estimate;              // that the target goes on with it
  const SuffixSource* source;  // who knows its longest match
  int64_t start;               // of that match's newest occurrence

  bool operator<(const Candidate& other) const {
    if (estimate != other.estimate) return estimate > other.estimate;
    return source != other.source ? source < other.source : start > other.start;
  }
};

class Drafter {
 public:
  // A draft: its token, and the contexts of its parent.
  struct State {
    int parent;
    int32_t token;
  };

  Drafter(const std::vector<SuffixSource>& sources, const DrawLaw& law)
      : sources_(sources),
        law_(law),
        doubt_scale_(law.greedy() ? 1 : 1 + kDoubtPerTemperature * law.temperature) {}

  template <class Give>
  void children(State state, int depth, Give&& give) {
    const int contexts = enter(state.parent < 0 ? matches() : follow(state));
    estimate(contexts_[contexts]);
    std::sort(candidates_.begin(), candidates_.end());
    if (law_.coupled && !law_.greedy()) perturb(depth);
    for (const Candidate& c : candidates_) give(c.token, c.estimate, State{contexts, c.token});
  }

 private:
  std::vector<Context> matches() const {
    std::vector<Context> found;
    for (const SuffixSource& source : sources_)
      for (SuffixTree::Point point : source.matches) found.push_back({&source, point});
    std::stable_sort(found.begin(), found.end(), [](const Context& a, const Context& b) {
      return a.point.depth > b.point.depth;
    });
    return found;
  }

  std::vector<Context> follow(State state) const {
    std::vector<Context> found;
    for (Context context : contexts_[state.parent])
      if (context.source->tree->step(context.point, state.token)) found.push_back(context);
    return found;
  }

  // Keeps the contexts that say something new, and adds the empty ones, from which shorter ones
  // will start: a match that occurs as often as a longer one says the same.
  int enter(const std::vector<Context>& found) {
    std::vector<int32_t> last(sources_.size());
    auto& kept = contexts_.emplace_back();
    for (const Context& context : found) {
      const int32_t count = context.num_continued();
      if (count == std::exchange(last[context.source - sources_.data()], count)) continue;
      kept.push_back(context);
    }
    for (const SuffixSource& source : sources_) kept.push_back({&source, {}});
    return static_cast<int>(contexts_.size()) - 1;
  }

  void estimate(const std::vector<Context>& contexts) {
    candidates_.clear();
    float left = 1;
    for (const Context& context : contexts) {
      if (context.point.depth == 0 || left < kNegligible) break;
      const int32_t count = context.num_continued();
      const float doubt = doubt_scale_ * context.doubt(), share = left / (count + doubt);
      context.source->tree->for_each_continuation(context.point, (count - 1) / kLeastShare + 1,
                                                  [&](int32_t token, int32_t n, int64_t start) {
                                                    add({token, share * n, context.source, start});
                                                  });
      left = share * doubt;
    }
  }

  void add(const Candidate& candidate) {
    for (Candidate& known : candidates_) {
      if (known.token != candidate.token) continue;
      known.estimate += candidate.estimate;
      return;
    }
    candidates_.push_back(candidate);
  }

  // At T > 0 the position's noise is known, and with it who wins if the estimates are right: all
  // other tokens together are one more candidate, with the mean of its noise.
  void perturb(int depth) {
    float others = 1;
    for (const Candidate& c : candidates_) others -= c.estimate;
    const float floor = score(std::max(others, 1e-6f), kMeanGumbel);
    float best = floor;
    for (Candidate& c : candidates_) {
      c.estimate = score(c.estimate, target_gumbel(law_.seed, law_.position + depth, c.token));
      best = std::max(best, c.estimate);
    }
    float total = std::exp(floor - best);
    for (Candidate& c : candidates_) total += c.estimate = std::exp(c.estimate - best);
    for (Candidate& c : candidates_) c.estimate /= total;
    std::sort(candidates_.begin(), candidates_.end());
  }

  float score(float estimate, float noise) const {
    return (std::log(estimate) / law_.temperature + noise) / kSuffixTau;
  }

  const std::vector<SuffixSource>& sources_;
  const DrawLaw law_;
  const float doubt_scale_;
  std::vector<std::vector<Context>> contexts_;
  std::vector<Candidate> candidates_;
};

}  // namespace

DraftTree draft_suffixes(const std::vector<SuffixSource>& sources, const DraftLimits& limits,
                         const DrawLaw& law) {
  Drafter drafter(sources, law);
  return grow_best_first(
      Drafter::State{-1, 0}, limits.depth, limits.nodes, limits.floor,
      [&](Drafter::State state, int depth, auto&& give) { drafter.children(state, depth, give); });
}

}  // namespace specfast
