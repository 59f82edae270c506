// A block of threads that are fibers on one OS thread, what its threads do together, and its shared
// memory. Kernels see none of this: cuda_emu.h spells it as CUDA does.
//
// A block is run warp by warp: a thread runs until it waits at a barrier or for its warp, so a
// warp gets as far as it can before the next one moves. Which thread or warp is next is the
// Order's choice; a kernel whose result depends on it lacks a barrier.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "fiber.h"
#include "shared_memory.h"

namespace emu {

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}  // NOLINT: as CUDA's
  uint64_t count() const { return (uint64_t)x * y * z; }
  dim3 at(uint64_t i) const {
    return {(unsigned)(i % x), (unsigned)(i / x % y), (unsigned)(i / x / y)};
  }
};

enum class Order { forward, reverse, random };
struct Schedule {
  Order order = Order::forward;
  uint64_t seed = 1;
};
inline Schedule schedule;  // of every launch from now on

// Prints the message with the kernel, block and thread that run, and aborts.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// Where a collective stands in the source. All threads that meet must have called the same one.
struct Site {
  const char* op;
  const char* file;
  int line;
};
#define EMU_SITE(op) emu::Site site = {op, __builtin_FILE(), __builtin_LINE()}

class Block;

struct Thread {
  enum State { ready, waiting, done };

  Block* block;
  dim3 index;
  int rank, lane;
  State state = done;
  Site site;       // where it waits
  const void* in;  // what it brings to its warp's collective, and where the result goes
  void* out;
  CopyQueue copies;
  Fiber fiber;

  void wait();
};

inline thread_local Thread* current = nullptr;  // null between threads

// A warp's collective under way. Those of disjoint masks may overlap in time; each is kept under
// its lowest lane.
struct Meeting {
  Site site;
  uint32_t mask = 0, arrived = 0;
  size_t in_size = 0;
};

struct Warp {
  Meeting meetings[32];
};

// The lanes of a collective when all have arrived.
template <class Out, class In>
struct Lanes {
  uint32_t mask;
  Thread* first;

  bool has(int lane) const { return mask >> lane & 1; }
  const In& in(int lane) const { return *static_cast<const In*>(first[lane].in); }
  Out& out(int lane) const { return *static_cast<Out*>(first[lane].out); }
};

// Waits until every lane of mask has arrived; the last one calls complete(warp's first thread).
void meet(Site site, uint32_t mask, const void* in, size_t in_size, void* out,
          void (*complete)(Thread* first, uint32_t mask, const void* body), const void* body);

// body(lanes), called once, fills lanes.out(i) for every lane i of the mask.
template <class Out, class In, class Body>
Out collective(Site site, uint32_t mask, const In& in, const Body& body) {
  Out out;
  meet(
      site, mask, &in, sizeof in, &out,
      [](Thread* first, uint32_t mask, const void* body) {
        (*static_cast<const Body*>(body))(Lanes<Out, In>{mask, first});
      },
      &body);
  return out;
}

// Waits for the whole block; how many threads brought true.
int barrier(Site site, bool predicate);

struct Launch {
  const char* kernel;
  dim3 grid, block;
  size_t shared_bytes;
  std::function<void()> body;  // of one thread
};

class Block {
 public:
  Block() = default;
  ~Block();
  Block(const Block&) = delete;

  void run(const Launch& launch, uint64_t rank);

  const Launch* launch = nullptr;
  dim3 index;
  SharedMemory shared;

 private:
  friend void meet(Site, uint32_t, const void*, size_t, void*,
                   void (*)(Thread*, uint32_t, const void*), const void*);
  friend int barrier(Site, bool);

  void grow(int num_threads);
  bool advance(int warp);
  void run_thread(Thread& thread);
  [[noreturn]] void deadlock();

  int size_ = 0, alive_ = 0;
  std::unique_ptr<Thread[]> threads_;
  int capacity_ = 0;
  unsigned char* stacks_ = nullptr;
  std::vector<Warp> warps_;
  std::vector<int> warp_order_, lane_order_;
  std::mt19937_64 random_;
  Site barrier_site_;
  int arrived_ = 0, predicates_ = 0, last_predicates_ = 0;
};

void run(const Launch& launch);

}  // namespace emu
