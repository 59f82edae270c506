// A thread's own memory between calls: it grows and is kept, so that a warm op allocates nothing.
#pragma once
#include <cstdint>
#include <cstdlib>

#include "core/carver.h"
#include "cpu/simd.h"

namespace specfast::cpu::SPECFAST_TIER {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { free(data_); }

  // Not initialised; valid until the next call.
  char* reserve(int64_t bytes) {
    if (bytes > size_) {
      free(data_);
      size_ = (bytes + 4095) / 4096 * 4096;
      data_ = static_cast<char*>(aligned_alloc(64, (size_t)size_));
      if (!data_) abort();
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

// carve(c) takes every array from the carver c: once to measure, once from the scratch.
template <class Carve>
void carve_from(Scratch& scratch, const Carve& carve) {
  Carver measure{nullptr};
  carve(measure);
  Carver give{scratch.reserve(measure.used)};
  carve(give);
}

}  // namespace specfast::cpu::SPECFAST_TIER
