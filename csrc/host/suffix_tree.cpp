#include "host/suffix_tree.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace specfast {
namespace {

constexpr int64_t kMaxTokens = INT32_MAX / 4;  // two nodes a token, numbered by int32

}  // namespace

SuffixTree::SuffixTree(int max_depth, int64_t max_bytes)
    : max_depth_(max_depth), max_tokens_(std::min(max_bytes / kMaxBytesPerToken, kMaxTokens)) {
  if (max_depth < 2) throw std::invalid_argument("need max_depth >= 2");
  if (max_tokens_ <= max_depth) throw std::invalid_argument("max_bytes is too small for max_depth");
  new_node();
}

size_t SuffixTree::bytes() const {
  size_t total = nodes_.capacity() * sizeof(Node) + table_.bytes();
  total += (text_.capacity() + free_.capacity() + open_.capacity()) * sizeof(int32_t);
  total += document_ends_.size() * sizeof(int64_t);
  for (const Node& node : nodes_) total += node.children.capacity() * sizeof(int32_t);
  return total;
}

void SuffixTree::append(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; i++) {
    text_.push_back(tokens[i]);
    extend_windows(tokens[i]);
    if (num_tokens() > max_tokens_) drop_oldest_token();
  }
}

void SuffixTree::end_document() {
  const int64_t start = document_ends_.empty() ? first_ : document_ends_.back();
  if (start == num_appended()) return;
  document_ends_.push_back(num_appended());
  open_.clear();
}

void SuffixTree::drop_document() {
  if (document_ends_.empty()) throw std::out_of_range("no document has ended");
  for (const int64_t end = document_ends_.front(); first_ < end;) drop_oldest_token();
}

std::vector<SuffixTree::Point> SuffixTree::ends(int max_length) const {
  std::vector<Point> points;
  for (int32_t i = std::min<int32_t>(max_length, open_.size()); i > 0; i--)
    points.push_back({open_[i - 1], i});
  return points;
}

std::vector<SuffixTree::Point> SuffixTree::ends_of(const int32_t* text, size_t size,
                                                   int max_length) const {
  std::vector<Point> points;
  for (size_t n = std::min<size_t>(max_length, size); n > 0; n--)
    if (auto point = find(text + (size - n), n)) points.push_back(*point);
  return points;
}

std::optional<SuffixTree::Point> SuffixTree::find(const int32_t* tokens, size_t count) const {
  Point point;
  for (size_t i = 0; i < count; i++)
    if (!step(point, tokens[i])) return std::nullopt;
  return point;
}

bool SuffixTree::step(Point& point, int32_t token) const {
  const Node& node = nodes_[point.node];
  if (point.depth < node.depth) {
    if (edge_token(node, point.depth) != token) return false;
  } else {
    const int32_t child = table_.find(point.node, token);
    if (child == ChildTable::kNone) return false;
    point.node = child;
  }
  point.depth++;
  return true;
}

void SuffixTree::extend_windows(int32_t token) {
  open_.insert(open_.begin(), kRoot);
  nodes_[kRoot].count++;
  nodes_[kRoot].ending++;
  for (int32_t& window : open_) window = extend(window, token);
  if (static_cast<int>(open_.size()) == max_depth_) open_.pop_back();
}

// Moves the end of a window on by a token; -> the node where it ends now.
int32_t SuffixTree::extend(int32_t window, int32_t token) {
  if (window != kRoot && nodes_[window].count == 1) {  // nobody else's leaf: its edge grows
    nodes_[window].depth++;
    nodes_[window].end = num_appended();
    return window;
  }
  int32_t next = table_.find(window, token);
  const int32_t depth = nodes_[window].depth + 1;
  if (next == ChildTable::kNone) {
    next = add_child(window, token);
  } else if (nodes_[next].depth > depth) {
    if (only_passes_to(window, next)) return slide(window);
    next = split(next, depth);
  }
  count_up(next);
  nodes_[next].ending++;
  nodes_[next].end = num_appended();
  nodes_[window].ending--;
  merge_if_plain(window);
  return next;
}

// Whether all windows at a node, but for one that ends there, go on to the same child.
bool SuffixTree::only_passes_to(int32_t id, int32_t child) const {
  return id != kRoot && nodes_[id].count == nodes_[child].count + 1;
}

// Moves a node a token down the edge to its only child: a split and a merge in one.
int32_t SuffixTree::slide(int32_t id) {
  Node &node = nodes_[id], &child = nodes_[node.children[0]];
  table_.erase(id, child.token);
  node.depth++;
  node.end = num_appended();
  child.token = edge_token(child, node.depth);
  table_.set(id, child.token, node.children[0]);
  return id;
}

void SuffixTree::drop_oldest_token() {
  const bool ended = !document_ends_.empty();
  const int64_t end = ended ? document_ends_.front() : num_appended();
  const auto length = static_cast<int32_t>(std::min<int64_t>(max_depth_, end - first_));
  int32_t at = kRoot;
  nodes_[kRoot].count--;
  while (nodes_[at].depth < length) {
    at = table_.find(at, token_at(first_ + nodes_[at].depth));
    count_down(at);
  }
  nodes_[at].ending--;
  if (nodes_[at].count == 0) {
    const int32_t parent = nodes_[at].parent;
    remove_leaf(at);
    at = parent;
  }
  merge_if_plain(at);
  if (++first_ == end && ended) document_ends_.pop_front();
  forget_text();
}

void SuffixTree::forget_text() {
  const int64_t unused = first_ - text_base_;
  if (unused < max_depth_ || unused < num_tokens()) return;
  text_.erase(text_.begin(), text_.begin() + unused);
  text_base_ = first_;
}

int32_t SuffixTree::add_child(int32_t parent, int32_t token) {
  const int32_t id = new_node();
  Node& child = nodes_[id];
  child.parent = parent;
  child.depth = nodes_[parent].depth + 1;
  child.token = token;
  child.rank = static_cast<int32_t>(nodes_[parent].children.size());
  nodes_[parent].children.push_back(id);
  table_.set(parent, token, id);
  return id;
}

// Puts a node on the edge to `id`, at a depth within it.
int32_t SuffixTree::split(int32_t id, int32_t depth) {
  const int32_t above = new_node();
  Node &node = nodes_[id], &middle = nodes_[above];
  middle.end = node.start() + depth;
  middle.depth = depth;
  middle.count = node.count;
  middle.parent = node.parent;
  middle.token = node.token;
  middle.rank = node.rank;
  middle.children.push_back(id);
  nodes_[middle.parent].children[middle.rank] = above;
  table_.set(middle.parent, middle.token, above);
  node.parent = above;
  node.token = edge_token(node, depth);
  node.rank = 0;
  table_.set(above, node.token, id);
  return above;
}

// Takes away a node that neither branches nor ends a window.
void SuffixTree::merge_if_plain(int32_t id) {
  Node& node = nodes_[id];
  if (id == kRoot || node.ending > 0 || node.children.size() != 1) return;
  const int32_t below = node.children[0];
  Node& child = nodes_[below];
  table_.erase(id, child.token);
  table_.set(node.parent, node.token, below);
  nodes_[node.parent].children[node.rank] = below;
  child.parent = node.parent;
  child.token = node.token;
  child.rank = node.rank;
  free_node(id);
}

// A leaf that counts nothing any more is its parent's last child.
void SuffixTree::remove_leaf(int32_t id) {
  const Node& node = nodes_[id];
  table_.erase(node.parent, node.token);
  nodes_[node.parent].children.pop_back();
  free_node(id);
}

// The node goes to the front of those as frequent as it, so that the order still holds.
void SuffixTree::count_up(int32_t id) {
  Node& node = nodes_[id];
  auto& siblings = nodes_[node.parent].children;
  const auto more_frequent = [&](int32_t other) { return nodes_[other].count > node.count; };
  const auto first =
      std::partition_point(siblings.begin(), siblings.begin() + node.rank, more_frequent);
  swap_ranks(siblings, first - siblings.begin(), node.rank);
  node.count++;
}

void SuffixTree::count_down(int32_t id) {
  Node& node = nodes_[id];
  auto& siblings = nodes_[node.parent].children;
  const auto as_frequent = [&](int32_t other) { return nodes_[other].count >= node.count; };
  const auto past = std::partition_point(siblings.begin() + node.rank, siblings.end(), as_frequent);
  swap_ranks(siblings, past - siblings.begin() - 1, node.rank);
  node.count--;
}

void SuffixTree::swap_ranks(std::vector<int32_t>& siblings, size_t a, size_t b) {
  std::swap(siblings[a], siblings[b]);
  nodes_[siblings[a]].rank = static_cast<int32_t>(a);
  nodes_[siblings[b]].rank = static_cast<int32_t>(b);
}

int32_t SuffixTree::new_node() {
  num_nodes_++;
  if (free_.empty()) {
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size() - 1);
  }
  const int32_t id = free_.back();
  free_.pop_back();
  return id;
}

void SuffixTree::free_node(int32_t id) {
  nodes_[id] = Node();
  free_.push_back(id);
  num_nodes_--;
}

}  // namespace specfast
