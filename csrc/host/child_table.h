// A hash table from (node, token) to the child that the token leads to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specfast {

// Open addressing with linear probing, a power of two, at most three quarters full. Erasing shifts
// back what probed past the hole, so that no marker of erased entries is needed.
class ChildTable {
 public:
  static constexpr int32_t kNone = -1;

  ChildTable() : slots_(16) {}

  size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

  int32_t find(int32_t node, int32_t token) const { return slots_[slot_of(node, token)].child; }

  void set(int32_t node, int32_t token, int32_t child) {
    Slot& slot = slots_[slot_of(node, token)];
    const bool is_new = slot.child == kNone;
    slot = {node, token, child};
    num_used_ += is_new;
    if (is_new && 4 * num_used_ > 3 * slots_.size()) grow();
  }

  void erase(int32_t node, int32_t token) {
    const size_t mask = slots_.size() - 1;
    size_t hole = slot_of(node, token);
    if (slots_[hole].child == kNone) return;
    slots_[hole].child = kNone;
    num_used_--;
    for (size_t at = (hole + 1) & mask; slots_[at].child != kNone; at = (at + 1) & mask) {
      const size_t home = hash(slots_[at].node, slots_[at].token) & mask;
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      slots_[hole] = slots_[at];
      slots_[at].child = kNone;
      hole = at;
    }
  }

 private:
  struct Slot {
    int32_t node = 0, token = 0, child = kNone;
  };

  static size_t hash(int32_t node, int32_t token) {
    uint64_t h = static_cast<uint64_t>(static_cast<uint32_t>(node)) << 32;
    h = (h | static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 32);
  }

  // Where the key is, or the empty slot where it belongs.
  size_t slot_of(int32_t node, int32_t token) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash(node, token) & mask;
    while (slots_[at].child != kNone && (slots_[at].node != node || slots_[at].token != token))
      at = (at + 1) & mask;
    return at;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.child != kNone) slots_[slot_of(slot.node, slot.token)] = slot;
  }

  std::vector<Slot> slots_;
  size_t num_used_ = 0;
};

}  // namespace specfast
