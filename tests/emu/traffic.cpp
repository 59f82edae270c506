#include "traffic.h"

#include <algorithm>

namespace emu {
namespace {

std::vector<Watch*> watches;  // changes only between launches

void see(const void* p, size_t bytes, bool is_write) {
  for (Watch* watch : watches) watch->see(reinterpret_cast<uintptr_t>(p), bytes, is_write);
}

}  // namespace

Watch::Watch(const void* data, size_t n, size_t element)
    : begin_(reinterpret_cast<uintptr_t>(data)), element_(element), reads_(n) {
  watches.push_back(this);
}

Watch::~Watch() { watches.erase(std::find(watches.begin(), watches.end(), this)); }

void Watch::see(uintptr_t address, size_t bytes, bool is_write) {
  uintptr_t first = std::max(address, begin_);
  uintptr_t end = std::min(address + bytes, begin_ + reads_.size() * element_);
  if (first >= end) return;
  if (is_write) {
    bytes_written_ += end - first;
    return;
  }
  for (size_t i = (first - begin_) / element_; i <= (end - 1 - begin_) / element_; i++) reads_[i]++;
}

}  // namespace emu

// What g++ calls, as TSan's runtime has it.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define SEE(n)                                                            \
  void __tsan_read##n(void* p) { emu::see(p, n, false); }                 \
  void __tsan_write##n(void* p) { emu::see(p, n, true); }                 \
  void __tsan_unaligned_read##n(const void* p) { emu::see(p, n, false); } \
  void __tsan_unaligned_write##n(void* p) { emu::see(p, n, true); }
SEE(1)
SEE(2)
SEE(4)
SEE(8)
SEE(16)
#undef SEE
void __tsan_read_range(void* p, unsigned long bytes) { emu::see(p, bytes, false); }
void __tsan_write_range(void* p, unsigned long bytes) { emu::see(p, bytes, true); }

// An atomic's write is the traffic; the emulator's load and exchange are one operation of a GPU.
#define SEE_ATOMIC(bits, T)                                                                      \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                       \
    return __atomic_load_n(p, __ATOMIC_RELAXED);                                                 \
  }                                                                                              \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* old, T next, int, int) {   \
    emu::see(const_cast<const T*>(p), sizeof(T), true);                                          \
    return __atomic_compare_exchange_n(p, old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED); \
  }
SEE_ATOMIC(32, unsigned)
SEE_ATOMIC(64, unsigned long)
#undef SEE_ATOMIC
}
