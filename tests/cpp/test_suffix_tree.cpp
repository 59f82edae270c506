// The suffix tree against counting every occurrence, and its drafts against those of a new tree.
#include "host/suffix_tree.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <utility>

#include "check.h"
#include "host/suffix_drafter.h"

using specfast::Doubt;
using specfast::DraftTree;
using specfast::SuffixTree;

namespace {

using Text = std::vector<int32_t>;
using Counts = std::map<int32_t, int32_t>;

constexpr int64_t bytes_for(int64_t tokens) { return tokens * SuffixTree::kMaxBytesPerToken; }

// What a tree should hold, as plain lists.
struct Documents {
  int max_depth;
  std::deque<Text> ended;
  Text open;

  Counts continuations(const Text& context) const {
    Counts counts;
    if ((int)context.size() >= max_depth) return counts;
    for (const Text& document : ended) count(document, context, counts);
    count(open, context, counts);
    return counts;
  }

  static void count(const Text& document, const Text& context, Counts& counts) {
    for (size_t end = context.size(); end < document.size(); end++)
      if (std::equal(context.begin(), context.end(), document.begin() + (end - context.size())))
        counts[document[end]]++;
  }

  SuffixTree build(int64_t max_bytes) const {
    SuffixTree tree(max_depth, max_bytes);
    for (const Text& document : ended) {
      tree.append(document.data(), document.size());
      tree.end_document();
    }
    tree.append(open.data(), open.size());
    return tree;
  }

  int64_t num_tokens() const {
    size_t total = open.size();
    for (const Text& document : ended) total += document.size();
    return (int64_t)total;
  }

  void drop_token() {
    Text& oldest = ended.empty() ? open : ended.front();
    oldest.erase(oldest.begin());
    if (oldest.empty() && !ended.empty()) ended.pop_front();
  }
};

Text random_text(std::mt19937& random, int size, int vocabulary) {
  Text text(size);
  for (int32_t& token : text) token = (int32_t)(random() % vocabulary);
  return text;
}

Counts counted(const SuffixTree& tree, const Text& context) {
  Counts counts;
  const auto point = tree.find(context.data(), context.size());
  if (!point) return counts;
  int32_t before = INT32_MAX, total = 0;
  tree.for_each_continuation(*point, 1, [&](int32_t token, int32_t count, int64_t) {
    CHECK(count <= before);
    before = count, total += count;
    counts[token] = count;
  });
  CHECK_EQ(total, tree.num_continued(*point));
  return counts;
}

// Contexts that occur and some that do not.
Text random_context(std::mt19937& random, const Documents& documents, int vocabulary) {
  const Text& text =
      documents.ended.empty() || random() % 2 ? documents.open : documents.ended.front();
  const int length = (int)(random() % (documents.max_depth + 1));
  if (random() % 4 == 0 || (int)text.size() < length)
    return random_text(random, length, vocabulary);
  const auto from = text.begin() + random() % (text.size() - length + 1);
  return Text(from, from + length);
}

DraftTree draft(const SuffixTree& tree, const Text& text) {
  const Doubt doubt{4, 4, 1, 0.5f, 0.25f};
  const int length = std::min<int>((int)text.size(), 5);
  return specfast::draft_suffixes(
      {{&tree, tree.ends(5), &doubt},
       {&tree, tree.ends_of(&*text.end() - length, length, length), &doubt}},
      {6, 16, 0.05f}, {0.0f, 0, 0});
}

void check_like_new(const SuffixTree& tree, const Documents& documents, int64_t max_bytes,
                    std::mt19937& random, int vocabulary) {
  const SuffixTree fresh = documents.build(max_bytes);
  CHECK_EQ(tree.num_tokens(), documents.num_tokens());
  CHECK_EQ(tree.num_documents(), (int64_t)documents.ended.size());
  CHECK_EQ(tree.num_nodes(), fresh.num_nodes());
  CHECK(tree.num_nodes() <= 2 * tree.num_tokens() + 1);
  for (int i = 0; i < 12; i++) {
    const Text context = random_context(random, documents, vocabulary);
    CHECK(counted(tree, context) == documents.continuations(context));
  }
  const Text text = random_text(random, 7, vocabulary);
  const DraftTree found = draft(tree, text), expected = draft(fresh, text);
  CHECK_BYTES(found.tokens, expected.tokens);
  CHECK_BYTES(found.parents, expected.parents);
  CHECK_BYTES(found.confidence, expected.confidence);
}

}  // namespace

TEST(suffix_tree_counts_what_any_mix_of_events_leaves) {
  std::mt19937 random(0);
  for (int vocabulary : {1, 2, 3, 1000})
    for (int max_depth : {2, 5, 9}) {
      const int64_t max_bytes = bytes_for(60);
      SuffixTree tree(max_depth, max_bytes);
      Documents documents{max_depth, {}, {}};
      for (int step = 0; step < 80; step++) {
        const Text added = random_text(random, (int)(random() % 16), vocabulary);
        tree.append(added.data(), added.size());
        documents.open.insert(documents.open.end(), added.begin(), added.end());
        while (documents.num_tokens() > tree.max_tokens()) documents.drop_token();
        if (random() % 3 == 0) {
          tree.end_document();
          if (!documents.open.empty()) documents.ended.push_back(documents.open);
          documents.open.clear();
        }
        if (random() % 5 == 0 && !documents.ended.empty()) {
          tree.drop_document();
          documents.ended.pop_front();
        }
        check_like_new(tree, documents, max_bytes, random, vocabulary);
      }
    }
}

TEST(suffix_tree_dropped_to_nothing_holds_nothing) {
  std::mt19937 random(1);
  SuffixTree tree(8, bytes_for(100000));
  for (int document = 0; document < 20; document++) {
    const Text text = random_text(random, 300, 20);
    tree.append(text.data(), text.size());
    tree.end_document();
  }
  CHECK(tree.num_nodes() > 6000);
  while (tree.num_documents()) tree.drop_document();
  CHECK_EQ(tree.num_nodes(), 1);
  CHECK_EQ(tree.num_tokens(), 0);
}

TEST(suffix_tree_stays_within_its_bytes) {
  std::mt19937 random(2);
  const auto fibonacci = [](int size) {
    Text a{0}, b{0, 1};
    while ((int)b.size() < size) {
      Text next = b;
      next.insert(next.end(), a.begin(), a.end());
      a = std::exchange(b, next);
    }
    return b;
  };
  Text twice = random_text(random, 6000, 50000);
  twice.insert(twice.end(), twice.begin(), twice.end());
  for (const Text& text : {random_text(random, 12000, 50000), random_text(random, 12000, 2),
                           Text(12000, 7), fibonacci(12000), twice})
    for (int64_t tokens : {300, 5000, 20000}) {
      SuffixTree tree(24, bytes_for(tokens));
      for (size_t i = 0; i < text.size(); i++) {
        tree.append(&text[i], 1);
        if (i % 1000 == 0) CHECK(tree.bytes() < (size_t)bytes_for(tokens) + 4096);
      }
      CHECK_EQ(tree.num_tokens(), std::min<int64_t>(tokens, (int64_t)text.size()));
      CHECK(tree.num_nodes() <= 2 * tree.num_tokens() + 1);
    }
}
