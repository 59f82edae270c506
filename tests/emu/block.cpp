#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>

namespace emu {
namespace {

constexpr int kMaxThreads = 1024;
constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kPage = 4096;  // the lowest of a stack faults, so that no overflow passes it

thread_local Block* running = nullptr;

bool same(const Site& a, const Site& b) {
  return a.line == b.line && !strcmp(a.op, b.op) && !strcmp(a.file, b.file);
}

// 0, 1, 2, ... as the schedule says.
template <class T>
void put_in_order(std::vector<T>& order, std::mt19937_64& random) {
  std::iota(order.begin(), order.end(), T(0));
  if (schedule.order == Order::reverse) std::reverse(order.begin(), order.end());
  if (schedule.order == Order::random) std::shuffle(order.begin(), order.end(), random);
}

}  // namespace

void print_place() {
  if (!running) return;
  const Launch& launch = *running->launch;
  dim3 b = running->index;
  fprintf(stderr, "  in kernel %s, block (%u, %u, %u)", launch.kernel, b.x, b.y, b.z);
  if (current)
    fprintf(stderr, ", thread (%u, %u, %u)", current->index.x, current->index.y, current->index.z);
  fprintf(stderr, "\n");
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "emu: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  print_place();
  abort();
}

// The current thread joins its warp's collective, or is told why it can't.
Meeting& Block::arrive(Site site, uint32_t mask, size_t in_size) {
  int lane = current->lane;
  Warp& warp = *current->warp;
  if (!(mask >> lane & 1)) fail("%s: lane %d is not in its mask %#x", site.op, lane, mask);
  if (uint32_t gone = mask & ~warp.alive)
    fail("%s: lanes %#x of mask %#x have exited", site.op, gone, mask);
  Meeting& meeting = warp.meetings[__builtin_ctz(mask)];
  if (!meeting.arrived) meeting.site = site, meeting.mask = mask, meeting.in_size = in_size;
  const Site& other = meeting.site;
  if (meeting.mask != mask || meeting.in_size != in_size || !same(other, site))
    fail("%s at %s:%d, mask %#x, meets %s at %s:%d, mask %#x", site.op, site.file, site.line, mask,
         other.op, other.file, other.line, meeting.mask);
  meeting.arrived |= 1u << lane;
  warp.waiting |= 1u << lane;
  return meeting;
}

void Block::wait(Site site) {
  current->site = site;
  current->state = Thread::waiting;
  current->fiber.yield();
}

int Block::barrier(Site site, bool predicate) {
  if (alive_ < size_) fail("%s: %d threads of the block have exited", site.op, size_ - alive_);
  if (!arrived_) barrier_site_ = site, predicates_ = 0;
  const Site& other = barrier_site_;
  if (!same(other, site))
    fail("%s at %s:%d meets %s at %s:%d", site.op, site.file, site.line, other.op, other.file,
         other.line);
  predicates_ += predicate;
  if (++arrived_ < size_) {
    wait(site);
  } else {
    arrived_ = 0;
    last_predicates_ = predicates_;
    for (Warp& warp : warps_) warp.release(warp.alive);
  }
  return last_predicates_;  // no later barrier can have completed without this thread
}

Block::~Block() { unmap_stacks(); }

void Block::unmap_stacks() {
  if (!stacks_) return;
  size_t bytes = (size_t)capacity_ * kStackBytes;
  ASAN_UNPOISON_MEMORY_REGION(stacks_, bytes);  // or its next owner has what frames left
  munmap(stacks_, bytes);
}

void Block::grow(int num_threads) {
  if (num_threads <= capacity_) return;
  unmap_stacks();
  capacity_ = num_threads;
  threads_.reset(new Thread[(size_t)num_threads]);
  void* stacks = mmap(nullptr, (size_t)num_threads * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) fail("no memory for %d stacks", num_threads);
  stacks_ = static_cast<unsigned char*>(stacks);
  for (int i = 0; i < num_threads; i++) {
    unsigned char* stack = stacks_ + (size_t)i * kStackBytes;
    mprotect(stack, kPage, PROT_NONE);
    Thread& thread = threads_[i];
    thread.block = this, thread.rank = i, thread.lane = i % 32;
    auto forever = [](void* argument) {
      for (Thread& self = *static_cast<Thread*>(argument);; self.fiber.yield())
        self.block->run_thread(self);
    };
    thread.fiber.start(stack + kPage, kStackBytes - kPage, forever, &thread);
  }
}

void Block::run_thread(Thread& thread) {
  launch->body();
  Warp& warp = *thread.warp;
  if (arrived_)
    fail("this thread exits, %d wait in %s at %s:%d", arrived_, barrier_site_.op,
         barrier_site_.file, barrier_site_.line);
  for (uint32_t rest = warp.waiting; rest; rest &= rest - 1) {
    const Thread& other = warp.threads[__builtin_ctz(rest)];
    if (other.mask >> thread.lane & 1)
      fail("this thread exits, thread %d waits for it in %s at %s:%d", other.rank, other.site.op,
           other.site.file, other.site.line);
  }
  thread.state = Thread::done;
  thread.copies.clear();
  warp.alive &= ~(1u << thread.lane);
  alive_--;
}

void Block::run(const Launch& of, uint64_t rank) {
  launch = &of, index = of.grid.at(rank), running = this;
  size_ = alive_ = (int)of.block.count();
  grow(size_);
  shared.start(of.shared_bytes);
  warps_.assign((size_t)(size_ + 31) / 32, Warp{});
  for (int i = 0; i < size_; i++) {
    Thread& thread = threads_[i];
    thread.state = Thread::ready;
    thread.index = of.block.at((uint64_t)i);
    thread.warp = &warps_[(size_t)i / 32];
    thread.warp->threads = &threads_[i - thread.lane];
    thread.warp->alive |= 1u << thread.lane;
  }
  warp_order_.resize(warps_.size());
  lane_order_.resize(32);
  random_.seed(schedule.seed * 1000003 + rank);
  put_in_order(warp_order_, random_);
  put_in_order(lane_order_, random_);
  while (alive_) {
    bool any = false;
    for (int warp : warp_order_) any |= advance(warp);
    if (!any) deadlock();
    if (schedule.order == Order::random) put_in_order(warp_order_, random_);
  }
  shared.finish();
  running = nullptr;
}

// Runs a warp until it is stuck, or in random order perhaps less; false: it was stuck already.
bool Block::advance(int warp) {
  bool any = false, moved;
  do {
    if (schedule.order == Order::random) put_in_order(lane_order_, random_);
    moved = false;
    for (int lane : lane_order_) {
      int rank = warp * 32 + lane;
      if (rank >= size_ || threads_[rank].state != Thread::ready) continue;
      current = &threads_[rank];
      current->fiber.resume();
      current = nullptr;
      moved = any = true;
    }
  } while (moved && (schedule.order != Order::random || random_() & 1));
  return any;
}

void Block::deadlock() {
  fprintf(stderr, "emu: deadlock\n");
  const Site* last = nullptr;
  for (int i = 0; i < size_; i++) {
    const Thread& thread = threads_[i];
    if (thread.state != Thread::waiting || (last && same(*last, thread.site))) continue;
    last = &thread.site;
    fprintf(stderr, "  thread %d waits in %s at %s:%d\n", i, last->op, last->file, last->line);
  }
  fail("no thread can go on");
}

void run(const Launch& launch) {
  uint64_t threads = launch.block.count(), blocks = launch.grid.count();
  if (!threads || threads > kMaxThreads || launch.block.z > 64)
    fail("%s: a block of %llu threads", launch.kernel, (unsigned long long)threads);
  if (launch.grid.x > 0x7fffffffu || launch.grid.y > 65535 || launch.grid.z > 65535)
    fail("%s: a grid of %u x %u x %u", launch.kernel, launch.grid.x, launch.grid.y, launch.grid.z);
  if (launch.shared_bytes > kMaxShared)
    fail("%s: %zu bytes of dynamic shared memory", launch.kernel, launch.shared_bytes);
  std::vector<uint64_t> order(blocks);
  std::mt19937_64 random(schedule.seed);
  put_in_order(order, random);

  static std::mutex mutex;
  static std::vector<std::unique_ptr<Block>> pool;
  std::atomic<uint64_t> next{0};
  auto work = [&] {
    std::unique_ptr<Block> block;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!pool.empty()) block = std::move(pool.back()), pool.pop_back();
    }
    if (!block) block = std::make_unique<Block>();
    for (uint64_t i; (i = next++) < blocks;) block->run(launch, order[i]);
    std::lock_guard<std::mutex> lock(mutex);
    pool.push_back(std::move(block));
  };
  std::vector<std::thread> others;
  uint64_t workers = std::min<uint64_t>({blocks, std::thread::hardware_concurrency(), 4});
  for (uint64_t i = 1; i < workers; i++) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (after_launch) after_launch(launch.kernel);
}

}  // namespace emu

// What sanitizers call when they report.
extern "C" __attribute__((visibility("default"))) void __asan_on_error() { emu::print_place(); }
extern "C" __attribute__((visibility("default"))) void __ubsan_on_report() { emu::print_place(); }
