// Gives out arrays of one piece of memory, one after the other; with no memory behind it, it only
// measures.
#pragma once
#include <cstdint>

#include "core/macros.h"

namespace specfast {

struct Carver {
  char* data;
  int64_t used = 0;

  template <class T>
  SPECFAST_HD T* take(int64_t n) {
    char* at = data ? data + used : nullptr;
    used += (n * (int64_t)sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
};

}  // namespace specfast
