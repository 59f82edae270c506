// A block of threads that are fibers of one OS thread, what they do together, and their launch.
// Kernels see none of this: cuda_emu.h spells it as CUDA does.
//
// A thread runs until it waits for its warp or its block; a warp gets as far as it can before the
// next one moves. Who is next is the schedule's choice, so a kernel whose result depends on it
// lacks a barrier. Blocks run on a few OS threads at once. Not modelled: the order in which other
// blocks see memory, and time.
#pragma once
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
// Called after each launch with its kernel's name, for tests that look between two.
inline std::function<void(const char* kernel)> after_launch;

void print_place();  // to stderr: the kernel, block and thread that run here

// Prints the message and the kernel, block and thread that run, and aborts.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

// Where a barrier or a collective stands in the source: all who meet must stand at the same one.
struct Site {
  const char *op, *file;
  int line;
};
// The last parameter of `op`; its default is where the call stands.
#define EMU_SITE(op) emu::Site site = {op, __builtin_FILE(), __builtin_LINE()}

class Block;
struct Warp;

struct Thread {
  enum State { ready, waiting, done };

  Block* block;
  Warp* warp;
  dim3 index;
  int rank, lane;
  State state = done;
  Site site;      // where it waits
  uint32_t mask;  // of the collective it is in, what it brings and where the result goes
  const void* in;
  void* out;
  CopyQueue copies;
  Fiber fiber;
};

inline thread_local Thread* current = nullptr;  // null between threads

// A warp's collective under way.
struct Meeting {
  Site site;
  size_t in_size;
  uint32_t mask, arrived = 0;
};

struct Warp {
  Thread* threads;
  uint32_t alive;        // lanes that have not exited
  uint32_t waiting;      // lanes in a meeting
  Meeting meetings[32];  // by lowest lane: those of disjoint masks may go on at once

  void release(uint32_t lanes) {
    waiting &= ~lanes;
    for (; lanes; lanes &= lanes - 1) threads[__builtin_ctz(lanes)].state = Thread::ready;
  }
};

struct Launch {
  const char* kernel;
  dim3 grid, block;
  size_t shared_bytes;
  std::function<void()> body;  // of one thread
};

void run(const Launch& launch);

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  ~Block();

  void run(const Launch& launch, uint64_t rank);

  // Both are called by the current thread. The last to arrive completes and the others go on.
  int barrier(Site site, bool predicate);  // how many threads brought true
  template <class Complete>
  void meet(Site site, uint32_t mask, const void* in, size_t in_size, void* out,
            const Complete& complete);

  const Launch* launch = nullptr;
  dim3 index;
  SharedMemory shared;

 private:
  Meeting& arrive(Site site, uint32_t mask, size_t in_size);
  void wait(Site site);
  void grow(int num_threads);
  void unmap_stacks();
  void run_thread(Thread& thread);
  bool advance(int warp);
  [[noreturn]] void deadlock();

  int size_ = 0, alive_ = 0, capacity_ = 0;
  std::unique_ptr<Thread[]> threads_;
  unsigned char* stacks_ = nullptr;
  std::vector<Warp> warps_;
  std::vector<int> warp_order_, lane_order_;
  std::mt19937_64 random_;
  Site barrier_site_;
  int arrived_ = 0, predicates_ = 0, last_predicates_ = 0;
};

// --- a collective, over the types that its lanes bring and get ---

template <class Out, class In>
struct Lanes {
  uint32_t mask;
  Thread* threads;

  const In& in(int lane) const { return *static_cast<const In*>(threads[lane].in); }
  Out& out(int lane) const { return *static_cast<Out*>(threads[lane].out); }
  bool has(int lane) const { return mask >> lane & 1; }
  template <class Body>
  void each(const Body& body) const {  // lowest lane first
    for (uint32_t rest = mask; rest; rest &= rest - 1) body(__builtin_ctz(rest));
  }
};

// When all lanes of mask have arrived, one of them runs complete(lanes), which sets every out.
template <class Out, class In, class Complete>
Out collective(Site site, uint32_t mask, const In& in, const Complete& complete) {
  Out out;
  current->block->meet(site, mask, &in, sizeof in, &out,
                       [&](Thread* first) { complete(Lanes<Out, In>{mask, first}); });
  return out;
}

template <class Complete>
void Block::meet(Site site, uint32_t mask, const void* in, size_t in_size, void* out,
                 const Complete& complete) {
  Warp& warp = *current->warp;
  Meeting& meeting = arrive(site, mask, in_size);
  current->mask = mask, current->in = in, current->out = out;
  if (meeting.arrived != mask) return wait(site);
  meeting.arrived = 0;
  complete(warp.threads);
  warp.release(mask);
}

}  // namespace emu
