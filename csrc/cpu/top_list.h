// The best scores seen, best first; of equal scores the lowest id.
#pragma once
#include "core/logit_law.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/vocab.h"

namespace specfast::cpu::SPECFAST_TIER {

struct Scored {
  float score;
  int32_t id;
};

SPECFAST_INLINE bool beats(Scored a, Scored b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

struct TopOne {
  Scored best{-kInfinity, -1};

  float bar() const { return best.score; }
  void offer(float score, int32_t id) {
    if (best.id < 0 || beats({score, id}, best)) best = {score, id};
  }
};

struct TopList {
  Scored* items;  // [capacity]
  int64_t capacity;
  int64_t size = 0;

  float bar() const {
    return size < capacity ? -kInfinity : size ? items[size - 1].score : kInfinity;
  }
  void offer(float score, int32_t id) {
    if (size == capacity) {
      if (!size || !beats({score, id}, items[size - 1])) return;
      size--;
    }
    int64_t at = size++;
    for (; at > 0 && beats({score, id}, items[at - 1]); at--) items[at] = items[at - 1];
    items[at] = {score, id};
  }
  void merge(const TopList& other) {
    for (int64_t i = 0; i < other.size; i++) offer(other.items[i].score, other.items[i].id);
  }
};

// The m best of each row: a list a slice, merged in the end.
struct TopLists {
  VocabSlices slices;
  int64_t m;
  TopList* lists;  // [R, slices]
  Scored* items;   // [R, slices, m]

  void carve(Carver& c, int64_t rows) {
    lists = c.take<TopList>(rows * slices.count);
    items = c.take<Scored>(rows * slices.count * m);
  }
  TopList& start(int64_t row, Slice s) const {
    int64_t at = slices.at(row, s);
    lists[at] = {items + at * m, m};
    return lists[at];
  }
  TopList merged(int64_t row) const {
    TopList best = lists[row * slices.count];
    for (int64_t i = 1; i < slices.count; i++) best.merge(lists[row * slices.count + i]);
    return best;
  }
};

}  // namespace specfast::cpu::SPECFAST_TIER
