// What memory holds before it is written: NaN as float, as bf16 and as half, absurd as an index.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace emu {

constexpr uint32_t kPoison = 0xffcdffcd;

inline void poison(void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 4)
    memcpy(static_cast<char*>(data) + i, &kPoison, std::min<size_t>(4, bytes - i));
}

inline bool is_poison(const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 4)
    if (memcmp(static_cast<const char*>(data) + i, &kPoison, std::min<size_t>(4, bytes - i)))
      return false;
  return true;
}

}  // namespace emu
