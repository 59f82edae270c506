// The n-gram index of one sequence: for each n-gram of its text, where it ended last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specfast {

struct NgramDraft {
  std::vector<int32_t> tokens;
  int match_length = 0;  // 0: nothing matched
};

// Appending and truncating cost O(max_n^2) a token, for each n-gram is hashed anew; drafting
// O(max_n^2 + k).
// An n-gram is entered once its continuation is known, so the text's own end never matches itself.
class NgramIndex {
 public:
  NgramIndex(int min_n, int max_n);

  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  int64_t num_ngrams() const { return num_used_; }
  void append(const int32_t* tokens, size_t count);
  void truncate(int64_t length);

  // Matches the end of the text, longest n-gram first, its last earlier occurrence first, and
  // copies up to k tokens from behind it. A copy that runs into the end of the text goes on in the
  // draft itself: a repetition goes on repeating.
  NgramDraft draft(int k) const;

 private:
  // Slots hold the end of an n-gram and its length; the text itself is the key.
  struct Slot {
    int32_t end = 0;  // one past its last token; 0: empty
    int32_t length = 0;
  };

  uint64_t hash(int32_t end, int length) const;
  bool same(const Slot& slot, int32_t end, int length) const;
  size_t find(int32_t end, int length) const;  // its slot, or the empty one where it belongs
  void enter(int32_t end, int length);
  void remove(int32_t end, int length);
  void erase_slot(size_t at);
  void grow();
  int longest(int32_t end) const;  // the longest n-gram that can end here
  int32_t& earlier(int32_t end, int length);

  int min_n_, max_n_;
  std::vector<int32_t> text_;
  std::vector<int32_t> earlier_;  // [text, n-gram length]: the end before this one, 0: none
  std::vector<Slot> slots_;       // open addressing, linear probing, a power of two
  int64_t num_used_ = 0;
};

}  // namespace specfast
