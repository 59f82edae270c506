// What a kernel reads and writes, byte by byte: g++ -fsanitize=thread calls a function at each
// access that it compiles, and traffic.cpp, in place of TSan, counts those within watched memory.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emu {

// Counts accesses to n elements of memory for as long as it lives.
class Watch {
 public:
  template <class T>
  Watch(const T* data, size_t n) : Watch(data, n, sizeof(T)) {}
  Watch(const Watch&) = delete;
  ~Watch();

  uint32_t reads(size_t i) const { return reads_[i]; }
  uint64_t bytes_written() const { return bytes_written_; }
  // Called by every thread at every access.
  void see(uintptr_t address, size_t bytes, bool is_write);

 private:
  Watch(const void* data, size_t n, size_t element);

  uintptr_t begin_;
  size_t element_;
  std::vector<std::atomic<uint32_t>> reads_;  // by element
  std::atomic<uint64_t> bytes_written_{0};
};

}  // namespace emu
