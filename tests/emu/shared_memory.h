// A block's shared memory, and asynchronous copies into it. Every object lies between guards and is
// poison when the block starts.
#pragma once
#include <memory>
#include <vector>

#include "poison.h"

namespace emu {

constexpr size_t kGuard = 64;  // bytes on either side of an object
constexpr size_t kMaxStaticShared = 48 << 10;
constexpr size_t kMaxShared = 163 << 10;  // sm_80's, the least of those we build for

class SharedMemory {
 public:
  void start(size_t dynamic_bytes);
  void finish();  // fails if a guard was written

  void* dynamic() const { return dynamic_; }
  size_t dynamic_bytes() const { return objects_[0].bytes; }
  // The object of a declaration, the same for all threads; key: the declaration's address.
  void* object(const void* key, size_t bytes, size_t alignment);
  // Fails unless [p, p + bytes) lies in one object.
  void check(const void* p, size_t bytes, const char* what) const;

 private:
  struct Object {
    const void* key;
    unsigned char* data;
    size_t bytes;
  };
  unsigned char* place(const void* key, size_t bytes, size_t alignment);

  static constexpr size_t kArena = kMaxShared + (64 << 10);  // room for guards
  std::unique_ptr<unsigned char[]> arena_{new unsigned char[kArena]};
  std::vector<Object> objects_;
  unsigned char *dynamic_ = nullptr, *end_ = nullptr;  // end_: of the objects and their guards
  size_t static_bytes_ = 0;
};

// cp.async as a queue a thread: a copy's destination is poison until the thread waits for it.
class CopyQueue {
 public:
  // bytes of 16 from global to shared, then zeros.
  void push(void* shared, const void* global, int bytes);
  void commit() { groups_.push_back(copies_.size()); }
  void wait(size_t newest);  // for all groups but the newest
  void clear() { copies_.clear(), groups_.clear(); }

 private:
  struct Copy {
    void* shared;
    const void* global;
    int bytes;
  };
  std::vector<Copy> copies_;
  std::vector<size_t> groups_;  // the end of each in copies_
};

}  // namespace emu
