// What memory holds before it is written: NaN as float, as bf16 and as half, absurd as an index.
#pragma once
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
  auto p = static_cast<unsigned char*>(data);
  for (; bytes >= 4; p += 4, bytes -= 4) memcpy(p, &kPoison, 4);
  memcpy(p, &kPoison, bytes);
}

inline bool is_poison(const void* data, size_t bytes) {
  auto p = static_cast<const unsigned char*>(data);
  for (; bytes >= 4; p += 4, bytes -= 4)
    if (memcmp(p, &kPoison, 4)) return false;
  return !memcmp(p, &kPoison, bytes);
}

}  // namespace emu
