#include "shared_memory.h"

#include "block.h"

namespace emu {

void SharedMemory::start(size_t dynamic_bytes) {
  objects_.clear();
  static_bytes_ = 0;
  // An odd multiple of 16: no more aligned than SPECFAST_DYNAMIC_SHARED promises.
  end_ = arena_.get() + -(uintptr_t)arena_.get() % 32 + 16;
  dynamic_ = place(nullptr, dynamic_bytes, 16);
}

unsigned char* SharedMemory::place(const void* key, size_t bytes, size_t alignment) {
  unsigned char* data = end_ + kGuard;
  data += -(uintptr_t)data % alignment;
  unsigned char* end = data + bytes + kGuard;
  end += -(uintptr_t)end % 16;
  if (end > arena_.get() + kArena) fail("too many objects in shared memory");
  poison(data - kGuard, kGuard);
  poison(data, bytes);
  poison(data + bytes, kGuard);
  ASAN_POISON_MEMORY_REGION(end_, end - end_);
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  objects_.push_back({key, data, bytes});
  end_ = end;
  return data;
}

void* SharedMemory::object(const void* key, size_t bytes, size_t alignment) {
  for (const Object& object : objects_)
    if (object.key == key) return object.data;
  static_bytes_ += bytes;
  if (static_bytes_ > kMaxStaticShared || static_bytes_ + dynamic_bytes() > kMaxShared)
    fail("%zu bytes of static and %zu of dynamic shared memory are too much", static_bytes_,
         dynamic_bytes());
  return place(key, bytes, alignment);
}

void SharedMemory::check(const void* p, size_t bytes, const char* what) const {
  auto begin = static_cast<const unsigned char*>(p);
  for (const Object& object : objects_)
    if (begin >= object.data && begin + bytes <= object.data + object.bytes) return;
  fail("%s: %p is not in shared memory", what, p);
}

void SharedMemory::finish() {
  ASAN_UNPOISON_MEMORY_REGION(arena_.get(), kArena);
  for (const Object& object : objects_)
    if (!is_poison(object.data - kGuard, kGuard) || !is_poison(object.data + object.bytes, kGuard))
      fail("a write beside a shared object of %zu bytes", object.bytes);
}

void CopyQueue::push(void* shared, const void* global, int bytes) {
  if ((uintptr_t)shared % 16 || (uintptr_t)global % 16)
    fail("cp.async: %p or %p is not 16-byte aligned", shared, global);
  if (bytes < 0 || bytes > 16) fail("cp.async of %d bytes", bytes);
  current->block->shared.check(shared, 16, "cp.async");
  poison(shared, 16);
  copies_.push_back({shared, global, bytes});
}

void CopyQueue::wait(size_t newest) {
  if (groups_.size() <= newest) return;
  size_t count = groups_.size() - newest, end = groups_[count - 1];
  for (size_t i = 0; i < end; i++) {
    memset(copies_[i].shared, 0, 16);
    memcpy(copies_[i].shared, copies_[i].global, (size_t)copies_[i].bytes);
  }
  copies_.erase(copies_.begin(), copies_.begin() + (ptrdiff_t)end);
  groups_.erase(groups_.begin(), groups_.begin() + (ptrdiff_t)count);
  for (size_t& group : groups_) group -= end;
}

}  // namespace emu
