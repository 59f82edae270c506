// Drafts from suffix trees: what followed earlier occurrences of the text's end, by frequency.
#pragma once

#include <cstdint>
#include <vector>

#include "host/draft_tree.h"
#include "host/suffix_tree.h"

namespace specfast {

// How far to doubt a match of n tokens: as if doubt[n] further occurrences had gone on as shorter
// matches say. So an estimate rises with the match's length, with its occurrences, and with the
// share of them that agree. The last entry serves longer matches too; doubt[0] is not used.
using Doubt = std::vector<float>;

// A tree to draft from, and the points in it where the text ends, longest match first.
struct SuffixSource {
  const SuffixTree* tree;
  std::vector<SuffixTree::Point> matches;
  const Doubt* doubt;
};

// At most so many tokens along a path and in all, each reached with at least `floor`.
struct DraftLimits {
  int depth, nodes;
  float floor;
};

// Of two matches of one length, that of the earlier source counts first.
DraftTree draft_suffixes(const std::vector<SuffixSource>& sources, const DraftLimits& limits,
                         const DrawLaw& law);

}  // namespace specfast
