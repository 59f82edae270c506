// The n-gram index against a search that tries everything.
#include "host/ngram.h"

#include <algorithm>
#include <random>

#include "check.h"

using specfast::NgramDraft;
using specfast::NgramIndex;

namespace {

using Text = std::vector<int32_t>;

NgramIndex index_of(const Text& text, int min_n, int max_n) {
  NgramIndex index(min_n, max_n);
  index.append(text.data(), text.size());
  return index;
}

NgramDraft brute_force(Text text, int min_n, int max_n, int k) {
  const int size = (int)text.size();
  for (int n = std::min(max_n, size - 1); n >= min_n; n--)
    for (int end = size - 1; end >= n; end--) {
      if (!std::equal(text.end() - n, text.end(), text.begin() + (end - n))) continue;
      for (int i = 0; i < k; i++) text.push_back(text[end + i]);
      return {Text(text.begin() + size, text.end()), n};
    }
  return {};
}

void check_like_new(const NgramIndex& index, const Text& text, int min_n, int max_n) {
  const NgramDraft draft = index.draft(6), expected = brute_force(text, min_n, max_n, 6);
  CHECK_EQ(index.size(), (int64_t)text.size());
  CHECK_EQ(index.num_ngrams(), index_of(text, min_n, max_n).num_ngrams());
  CHECK_EQ(draft.match_length, expected.match_length);
  CHECK_BYTES(draft.tokens, expected.tokens);
}

Text random_text(std::mt19937& random, int size, int vocabulary) {
  Text text(size);
  for (int32_t& token : text) token = (int32_t)(random() % vocabulary);
  return text;
}

}  // namespace

TEST(ngram_follows_any_mix_of_appends_and_truncations) {
  std::mt19937 random(0);
  for (int vocabulary : {2, 3, 1000})
    for (int min_n : {1, 2, 3}) {
      const int max_n = min_n + 2;
      NgramIndex index(min_n, max_n);
      Text text;
      for (int step = 0; step < 60; step++) {
        const Text added = random_text(random, (int)(random() % 30), vocabulary);
        index.append(added.data(), added.size());
        text.insert(text.end(), added.begin(), added.end());
        check_like_new(index, text, min_n, max_n);
        text.resize(text.size() - random() % (added.size() + 2) % (text.size() + 1));
        index.truncate((int64_t)text.size());
        check_like_new(index, text, min_n, max_n);
      }
    }
}

TEST(ngram_truncation_to_nothing_empties_the_table) {
  std::mt19937 random(1);
  NgramIndex index = index_of(random_text(random, 3000, 50), 2, 4);
  CHECK(index.num_ngrams() > 1000);
  index.truncate(0);
  CHECK_EQ(index.num_ngrams(), 0);
  CHECK_EQ(index.draft(4).match_length, 0);
}

TEST(ngram_repetition_goes_on_past_the_end) {
  const NgramDraft draft = index_of({9, 1, 2, 1, 2}, 2, 4).draft(5);
  CHECK_BYTES(draft.tokens, (Text{1, 2, 1, 2, 1}));
  CHECK_EQ(draft.match_length, 2);
}
