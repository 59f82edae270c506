// How often each string of up to max_depth tokens occurs in a stream of documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "host/child_table.h"

namespace specfast {

// A compressed suffix trie, cut at max_depth, over the newest tokens of a stream. Appending at the
// stream's end and dropping its oldest token cost O(max_depth); there are at most two nodes a
// token.
//
// Each position opens a window: the up to max_depth tokens from it on within its document. A node
// counts the windows that begin with its string, so that count is the string's occurrences.
// Invariant: a node other than the root branches, or some window ends at it. So the tree is a
// function of the tokens held, whatever was held before.
class SuffixTree {
 public:
  // The most that a token can take, vectors that have just grown included.
  static constexpr int64_t kMaxBytesPerToken = 448;

  // A string that occurs: its first `depth` tokens of those on the way to `node`.
  struct Point {
    int32_t node = 0, depth = 0;
  };

  // Holds the newest max_bytes / kMaxBytesPerToken tokens.
  SuffixTree(int max_depth, int64_t max_bytes);

  int max_depth() const { return max_depth_; }
  int64_t max_tokens() const { return max_tokens_; }
  int64_t num_tokens() const { return num_appended() - first_; }
  int64_t num_appended() const { return text_base_ + static_cast<int64_t>(text_.size()); }
  int64_t num_documents() const { return static_cast<int64_t>(document_ends_.size()); }
  int64_t num_nodes() const { return num_nodes_; }
  size_t bytes() const;

  void append(const int32_t* tokens, size_t count);  // to the open document
  void end_document();                               // no string reaches past here
  void drop_document();                              // the oldest one that has ended

  // Where the open document's last max_length .. 1 tokens are. Their own end is no continuation.
  std::vector<Point> ends(int max_length) const;
  // Where those of the last max_length .. 1 tokens of another text are that occur here.
  std::vector<Point> ends_of(const int32_t* text, size_t size, int max_length) const;
  // The last `count` tokens held.
  const int32_t* tail(size_t count) const { return text_.data() + text_.size() - count; }

  std::optional<Point> find(const int32_t* tokens, size_t count) const;
  bool step(Point& point, int32_t token) const;  // false, and point as it was, where that is unseen

  // Occurrences of the string that a token follows.
  int32_t num_continued(Point point) const {
    const Node& node = nodes_[point.node];
    return point.depth < node.depth ? node.count : node.count - node.ending;
  }

  // Calls f(token, occurrences, start of the newest) for each token that follows the string at
  // least `at_least` times, the most frequent first; equals come in any order.
  template <class F>
  void for_each_continuation(Point point, int32_t at_least, F&& f) const {
    const Node& node = nodes_[point.node];
    if (point.depth < node.depth) {
      if (node.count >= at_least) f(edge_token(node, point.depth), node.count, node.start());
      return;
    }
    for (int32_t id : node.children) {
      const Node& child = nodes_[id];
      if (child.count < at_least) return;
      f(child.token, child.count, child.start());
    }
  }

 private:
  static constexpr int32_t kRoot = 0;

  struct Node {
    int64_t end = 0;     // of its string's newest occurrence, a position in the stream
    int32_t depth = 0;   // its string's length
    int32_t count = 0;   // windows that begin with its string
    int32_t ending = 0;  // of them, those that are its string
    int32_t parent = 0;
    int32_t token = 0;              // the first on the edge from its parent
    int32_t rank = 0;               // its place among its parent's children
    std::vector<int32_t> children;  // most frequent first

    int64_t start() const { return end - depth; }
  };

  int32_t token_at(int64_t position) const { return text_[position - text_base_]; }
  int32_t edge_token(const Node& node, int32_t depth) const {
    return token_at(node.start() + depth);
  }

  void extend_windows(int32_t token);
  int32_t extend(int32_t window, int32_t token);
  bool only_passes_to(int32_t id, int32_t child) const;
  int32_t slide(int32_t id);
  void drop_oldest_token();
  void forget_text();

  int32_t add_child(int32_t parent, int32_t token);
  int32_t split(int32_t node, int32_t depth);
  void merge_if_plain(int32_t node);
  void remove_leaf(int32_t node);
  void count_up(int32_t node);
  void count_down(int32_t node);
  void swap_ranks(std::vector<int32_t>& siblings, size_t a, size_t b);
  int32_t new_node();
  void free_node(int32_t node);

  int max_depth_;
  int64_t max_tokens_;
  int64_t first_ = 0;      // position of the oldest token held
  int64_t text_base_ = 0;  // position of text_[0]; it trails first_
  std::vector<int32_t> text_;
  std::deque<int64_t> document_ends_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_;
  std::vector<int32_t> open_;  // nodes of the windows that still grow: open_[i] has i + 1 tokens
  ChildTable table_;
  int64_t num_nodes_ = 0;
};

}  // namespace specfast
