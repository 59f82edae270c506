#include "host/ngram.h"

#include <algorithm>
#include <stdexcept>

namespace specfast {
namespace {

constexpr size_t kFirstCapacity = 256;
constexpr int64_t kMaxText = INT32_MAX - 1;

uint64_t mix(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

}  // namespace

NgramIndex::NgramIndex(int min_n, int max_n)
    : min_n_(min_n), max_n_(max_n), slots_(kFirstCapacity) {
  if (min_n < 1 || max_n < min_n) throw std::invalid_argument("need 1 <= min_n <= max_n");
}

void NgramIndex::append(const int32_t* tokens, size_t count) {
  if (size() + static_cast<int64_t>(count) > kMaxText) throw std::length_error("text too long");
  for (size_t i = 0; i < count; ++i) {
    const auto end = static_cast<int32_t>(text_.size());
    text_.push_back(tokens[i]);
    earlier_.resize(text_.size() * (max_n_ - min_n_ + 1));
    for (int n = min_n_; n <= longest(end); ++n) enter(end, n);
  }
}

void NgramIndex::truncate(int64_t length) {
  if (length < 0 || length > size()) throw std::out_of_range("length is not within the text");
  while (size() > length) {
    const auto end = static_cast<int32_t>(text_.size() - 1);
    for (int n = min_n_; n <= longest(end); ++n) remove(end, n);
    text_.pop_back();
    earlier_.resize(text_.size() * (max_n_ - min_n_ + 1));
  }
}

NgramDraft NgramIndex::draft(int k) const {
  NgramDraft result;
  const auto end = static_cast<int32_t>(text_.size());
  for (int n = longest(end); n >= min_n_; --n) {
    const int32_t from = slots_[find(end, n)].end;
    if (from == 0) continue;
    result.match_length = n;
    result.tokens.reserve(std::max(k, 0));
    for (int i = 0; i < k; ++i) {
      const int32_t at = from + i;
      result.tokens.push_back(at < end ? text_[at] : result.tokens[at - end]);
    }
    return result;
  }
  return result;
}

uint64_t NgramIndex::hash(int32_t end, int length) const {
  uint64_t h = static_cast<uint64_t>(length);
  for (int32_t i = end - length; i < end; ++i) h = mix(h, static_cast<uint32_t>(text_[i]));
  return h;
}

bool NgramIndex::same(const Slot& slot, int32_t end, int length) const {
  return slot.length == length && std::equal(text_.begin() + (end - length), text_.begin() + end,
                                             text_.begin() + (slot.end - length));
}

size_t NgramIndex::find(int32_t end, int length) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash(end, length) & mask;
  while (slots_[at].end != 0 && !same(slots_[at], end, length)) at = (at + 1) & mask;
  return at;
}

void NgramIndex::enter(int32_t end, int length) {
  Slot& slot = slots_[find(end, length)];
  const bool is_new = slot.end == 0;
  earlier(end, length) = slot.end;
  slot = {end, length};
  num_used_ += is_new;
  if (is_new && 2 * static_cast<size_t>(num_used_) > slots_.size()) grow();
}

void NgramIndex::remove(int32_t end, int length) {
  const size_t at = find(end, length);
  slots_[at].end = earlier(end, length);
  if (slots_[at].end == 0) erase_slot(at);
}

// Shifts back what probed past the hole, so that no marker of deleted entries is needed.
void NgramIndex::erase_slot(size_t hole) {
  const size_t mask = slots_.size() - 1;
  slots_[hole] = {};
  --num_used_;
  for (size_t at = (hole + 1) & mask; slots_[at].end != 0; at = (at + 1) & mask) {
    const size_t home = hash(slots_[at].end, slots_[at].length) & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    slots_[at] = {};
    hole = at;
  }
}

void NgramIndex::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.end != 0) slots_[find(slot.end, slot.length)] = slot;
  }
}

int NgramIndex::longest(int32_t end) const { return std::min<int32_t>(max_n_, end); }

int32_t& NgramIndex::earlier(int32_t end, int length) {
  return earlier_[static_cast<size_t>(end) * (max_n_ - min_n_ + 1) + (length - min_n_)];
}

}  // namespace specfast
