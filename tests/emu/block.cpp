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
constexpr size_t kPage = 4096;  // the lowest of a stack, which overflow must not pass

thread_local Block* running = nullptr;

void print_place() {
  if (!running) return;
  const Launch& launch = *running->launch;
  dim3 b = running->index;
  fprintf(stderr, "  in kernel %s, block (%u, %u, %u)", launch.kernel, b.x, b.y, b.z);
  if (current)
    fprintf(stderr, ", thread (%u, %u, %u)", current->index.x, current->index.y, current->index.z);
  fprintf(stderr, "\n");
}

bool same(const Site& a, const Site& b) {
  return a.line == b.line && !strcmp(a.op, b.op) && !strcmp(a.file, b.file);
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "emu: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  print_place();
  abort();
}

void Thread::wait() {
  state = waiting;
  fiber.yield();
}

void meet(Site site, uint32_t mask, const void* in, size_t in_size, void* out,
          void (*complete)(Thread*, uint32_t, const void*), const void* body) {
  Thread& me = *current;
  Block& block = *me.block;
  Thread* first = &me - me.lane;
  if (!(mask >> me.lane & 1)) fail("%s: lane %d is not in its mask %#x", site.op, me.lane, mask);
  for (int lane = 0; lane < 32; lane++)
    if (mask >> lane & 1 &&
        (first->rank + lane >= block.size_ || first[lane].state == Thread::done))
      fail("%s: lane %d of mask %#x has exited", site.op, lane, mask);
  Meeting& meeting = block.warps_[me.rank / 32].meetings[__builtin_ctz(mask)];
  if (!meeting.arrived) meeting.site = site, meeting.mask = mask, meeting.in_size = in_size;
  const Site& other = meeting.site;
  if (meeting.mask != mask || meeting.in_size != in_size || !same(other, site))
    fail("%s at %s:%d, mask %#x, meets %s at %s:%d, mask %#x", site.op, site.file, site.line, mask,
         other.op, other.file, other.line, meeting.mask);
  me.site = site, me.in = in, me.out = out;
  meeting.arrived |= 1u << me.lane;
  if (meeting.arrived != mask) return me.wait();
  meeting.arrived = 0;
  complete(first, mask, body);
  for (int lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) first[lane].state = Thread::ready;
}

int barrier(Site site, bool predicate) {
  Thread& me = *current;
  Block& block = *me.block;
  if (block.alive_ < block.size_)
    fail("%s: %d threads of the block have exited", site.op, block.size_ - block.alive_);
  if (!block.arrived_) block.barrier_site_ = site, block.predicates_ = 0;
  const Site& other = block.barrier_site_;
  if (!same(other, site))
    fail("%s at %s:%d meets %s at %s:%d", site.op, site.file, site.line, other.op, other.file,
         other.line);
  me.site = site;
  block.predicates_ += predicate;
  if (++block.arrived_ < block.size_) {
    me.wait();
  } else {
    block.arrived_ = 0;
    block.last_predicates_ = block.predicates_;
    for (int i = 0; i < block.size_; i++) block.threads_[i].state = Thread::ready;
  }
  return block.last_predicates_;  // nobody can complete the next barrier without this thread
}

Block::~Block() {
  if (stacks_) munmap(stacks_, (size_t)capacity_ * kStackBytes);
}

void Block::grow(int num_threads) {
  if (num_threads <= capacity_) return;
  if (stacks_) munmap(stacks_, (size_t)capacity_ * kStackBytes);
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
  thread.state = Thread::done;
  thread.copies.clear();
  alive_--;
  if (arrived_)
    fail("this thread exits, %d wait in %s at %s:%d", arrived_, barrier_site_.op,
         barrier_site_.file, barrier_site_.line);
  for (const Meeting& meeting : warps_[thread.rank / 32].meetings)
    if (meeting.arrived && meeting.mask >> thread.lane & 1)
      fail("this thread exits, its warp waits for it in %s at %s:%d", meeting.site.op,
           meeting.site.file, meeting.site.line);
}

void Block::run(const Launch& of, uint64_t rank) {
  launch = &of, index = of.grid.at(rank), running = this;
  size_ = alive_ = (int)of.block.count();
  grow(size_);
  random_.seed(schedule.seed * 1000003 + rank);
  shared.start(of.shared_bytes);
  for (int i = 0; i < size_; i++) {
    threads_[i].state = Thread::ready;
    threads_[i].index = of.block.at((uint64_t)i);
  }
  warps_.assign((size_t)(size_ + 31) / 32, Warp());
  warp_order_.resize(warps_.size());
  lane_order_.resize(32);
  for (std::vector<int>* order : {&warp_order_, &lane_order_}) {
    std::iota(order->begin(), order->end(), 0);
    if (schedule.order == Order::reverse) std::reverse(order->begin(), order->end());
  }
  while (alive_) {
    if (schedule.order == Order::random)
      std::shuffle(warp_order_.begin(), warp_order_.end(), random_);
    bool any = false;
    for (int warp : warp_order_) any |= advance(warp);
    if (!any) deadlock();
  }
  shared.finish();
  running = nullptr;
}

// Runs a warp until it is stuck, or in random order perhaps less; false: it was stuck already.
bool Block::advance(int warp) {
  bool any = false, moved;
  do {
    if (schedule.order == Order::random)
      std::shuffle(lane_order_.begin(), lane_order_.end(), random_);
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
  std::iota(order.begin(), order.end(), 0);
  if (schedule.order == Order::reverse) std::reverse(order.begin(), order.end());
  if (schedule.order == Order::random)
    std::shuffle(order.begin(), order.end(), std::mt19937_64(schedule.seed));

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
}

}  // namespace emu
