// Planted bugs, each of which must be caught, and beside each its corrected twin, which must not:
// the emulator's own test, so in emulation only.
#if !defined(__CUDACC__)
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "cuda/ptx.cuh"
#include "device.h"

namespace {

using namespace device;
using namespace specfast::cuda;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

// What body prints in a process of its own if it dies or fails a check there, else nothing.
template <class Body>
std::string last_words(const Body& body) {
  int ends[2];
  if (pipe(ends)) return "no pipe";
  std::cout.flush();
  pid_t child = fork();
  if (!child) {
    rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDOUT_FILENO), dup2(ends[1], STDERR_FILENO);
    int before = check::failures();
    body();
    std::cout.flush();
    _exit(check::failures() > before);
  }
  close(ends[1]);
  std::string words;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) words.append(buffer, (size_t)n);
  close(ends[0]);
  int status = 1;
  waitpid(child, &status, 0);
  return status ? words : "";
}

// The message must come, and name the place: a kernel, block and thread, or part of it.
void dies(const std::string& words, const char* message, const char* place) {
  if (words.find(message) == std::string::npos || words.find(place) == std::string::npos)
    check::fail(__FILE__, __LINE__) << "no \"" << message << "\" and \"" << place << "\" in:\n"
                                    << words << "\n";
}

template <class Kernel>
std::vector<int> one_block(Kernel kernel, int threads, size_t shared_bytes = 0) {
  Device<int> out((size_t)threads);
  SPECFAST_LAUNCH(kernel, 1, threads, shared_bytes, nullptr, out.data());
  return out.host();
}

template <class Kernel>
bool orders_agree(Kernel kernel, int threads) {
  auto outputs = in_each_order([&] { return one_block(kernel, threads); });
  return outputs[0] == outputs[1] && outputs[0] == outputs[2];
}

// --- orders ---

__device__ int counter;

__global__ void takes_tickets(int* out) {
  int ticket = atomicAdd(&counter, 1);
  out[blockIdx.x * 64 + threadIdx.x] = ticket;
}

std::vector<int> tickets(emu::Schedule order) {
  emu::schedule = order;
  counter = 0;
  auto taken = one_block(takes_tickets, 64);
  emu::schedule = {};
  return taken;
}

TEST(orders_are_what_they_say) {
  auto forward = tickets({emu::Order::forward}), reverse = tickets({emu::Order::reverse});
  for (int i = 0; i < 64; i++) {
    CHECK_EQ(forward[(size_t)i], i);
    CHECK_EQ(reverse[(size_t)i], 63 - i);
  }
  auto random = tickets({emu::Order::random, 1});
  CHECK(random != forward && random != reverse);
  CHECK(random == tickets({emu::Order::random, 1}));
  CHECK(random != tickets({emu::Order::random, 2}));
}

// --- races: another order gives another result ---

template <bool kFixed>
__global__ void missing_barrier(int* out) {
  SPECFAST_SHARED(int[64], values);
  int i = (int)threadIdx.x;
  values[i] = i;
  if (kFixed) __syncthreads();
  out[i] = values[63 - i];
}

TEST(a_missing_barrier_is_caught) {
  CHECK(!orders_agree(missing_barrier<false>, 64));
  CHECK(orders_agree(missing_barrier<true>, 64));
  auto run = [] { everywhere([] { return one_block(missing_barrier<false>, 64); }); };
  dies(last_words(run), "reverse and forward differ", "");
}

// The second phase may overwrite what a slow warp has yet to read in the first.
template <bool kFixed>
__global__ void missing_second_barrier(int* out) {
  SPECFAST_SHARED(int, value);
  int sum = 0;
  for (int phase = 0; phase < 3; phase++) {
    if (threadIdx.x == 0) value = phase;
    __syncthreads();
    sum = 10 * sum + __shfl_sync(kFullMask, value, 0);
    if (kFixed) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

TEST(a_missing_barrier_before_reuse_is_caught) {
  CHECK(!orders_agree(missing_second_barrier<false>, 64));
  CHECK(orders_agree(missing_second_barrier<true>, 64));
}

template <bool kFixed>
__global__ void missing_syncwarp(int* out) {
  SPECFAST_SHARED(int[32], values);
  int lane = (int)threadIdx.x;
  values[lane] = lane;
  if (kFixed) __syncwarp();
  out[lane] = values[lane ^ 1];
}

TEST(a_missing_syncwarp_is_caught) {
  CHECK(!orders_agree(missing_syncwarp<false>, 32));
  CHECK(orders_agree(missing_syncwarp<true>, 32));
}

__device__ int4 source[32];

// A copy that nobody waits for has not landed; one that only its own thread waits for is a race.
template <bool kWait, bool kBarrier>
__global__ void copies(int* out) {
  SPECFAST_SHARED(int4[32], values);
  int lane = (int)threadIdx.x;
  cp_async_16(&values[lane], &source[lane]);
  cp_async_commit();
  if (kWait) cp_async_wait<0>();
  if (kBarrier) __syncthreads();
  out[lane] = values[31 - lane].x;
}

TEST(a_missing_wait_for_a_copy_is_caught) {
  for (int lane = 0; lane < 32; lane++) source[lane].x = lane;
  auto landed = one_block(copies<true, true>, 32);
  for (int lane = 0; lane < 32; lane++) CHECK_EQ(landed[(size_t)lane], 31 - lane);
  for (int value : one_block(copies<false, true>, 32)) CHECK_EQ(value, (int)emu::kPoison);
  CHECK(!orders_agree(copies<true, false>, 32));
  CHECK(orders_agree(copies<true, true>, 32));
}

// --- memory ---

template <bool kFixed>
__global__ void slot_past_the_end(int* out) {
  out[threadIdx.x + (kFixed ? 0 : 1)] = 1;
}

TEST(a_slot_past_the_end_is_caught) {
  dies(last_words([] { one_block(slot_past_the_end<false>, 32); }),
       kAddressSanitizer ? "use-after-poison" : "a write past its 32 elements",
       kAddressSanitizer ? "block (0, 0, 0), thread (31, 0, 0)" : "");
  CHECK_EQ(last_words([] { one_block(slot_past_the_end<true>, 32); }), "");
}

template <int kCount, bool kDynamic>
__global__ void shared_past_the_end(int* out) {
  SPECFAST_DYNAMIC_SHARED(int, dynamic);
  SPECFAST_SHARED(int[kCount], fixed);
  SPECFAST_SHARED(int[kCount], behind);
  int i = (int)threadIdx.x;
  behind[i % kCount] = i;
  (kDynamic ? dynamic : fixed)[i] = i;
  __syncthreads();
  out[i] = i;
}

TEST(shared_memory_past_the_end_is_caught) {
  const char* message = kAddressSanitizer ? "use-after-poison" : "a write beside a shared object";
  dies(last_words([] { one_block(shared_past_the_end<63, false>, 64, 256); }), message,
       "block (0, 0, 0)");
  dies(last_words([] { one_block(shared_past_the_end<64, true>, 64, 252); }), message,
       "block (0, 0, 0)");
  CHECK_EQ(last_words([] { one_block(shared_past_the_end<64, false>, 64, 256); }), "");
  CHECK_EQ(last_words([] { one_block(shared_past_the_end<64, true>, 64, 256); }), "");
}

__global__ void reads_shared(int* out) {
  SPECFAST_SHARED(float, value);
  SPECFAST_DYNAMIC_SHARED(int, word);
  bool nan = value != value;
  __syncthreads();
  value = 1;
  *word = 2;
  out[threadIdx.x] = nan;
}

TEST(shared_memory_starts_as_poison_in_every_block) {
  Device<int> out(1);
  for (int i = 0; i < 2; i++) {
    SPECFAST_LAUNCH(reads_shared, 3, 1, 4, nullptr, out.data());
    CHECK_EQ(out.host()[0], 1);
  }
}

template <bool kFixed>
__global__ void misaligned(int* out) {
  if (threadIdx.x == 1) *reinterpret_cast<int4*>(out + (kFixed ? 4 : 2)) = int4{1, 2, 3, 4};
}

TEST(a_misaligned_vector_is_caught) {
  dies(last_words([] { one_block(misaligned<false>, 32); }), "misaligned address",
       "in kernel kernel, block (0, 0, 0), thread (1, 0, 0)");
  CHECK_EQ(last_words([] { one_block(misaligned<true>, 32); }), "");
}

template <int kBytes>
__global__ void misaligned_row(int* out) {
  SPECFAST_SHARED(int4[9], rows);
  uint32_t r[1];
  ldmatrix_x1(r, reinterpret_cast<char*>(&rows[threadIdx.x % 8]) + kBytes);
  out[threadIdx.x] = 0;
}

__global__ void ldmatrix_of_global(int* out) {
  uint32_t r[1];
  ldmatrix_x1(r, &source[threadIdx.x % 8]);
  out[threadIdx.x] = 0;
}

TEST(a_bad_row_of_ldmatrix_is_caught) {
  dies(last_words([] { one_block(misaligned_row<8>, 32); }), "is not 16-byte aligned",
       "thread (0, 0, 0)");
  dies(last_words([] { one_block(ldmatrix_of_global, 32); }), "is not in shared memory",
       "thread (0, 0, 0)");
  CHECK_EQ(last_words([] { one_block(misaligned_row<16>, 32); }), "");
}

// A multiplication in 32 bits reaches another slot of a cache of more than 2^32 elements.
template <class Index>
__global__ void writes_slot(uint8_t* cache, unsigned slot, unsigned token_size) {
  cache[(Index)slot * token_size + threadIdx.x] = 7;
}

TEST(an_offset_of_32_bits_is_caught) {
  constexpr size_t kTokenSize = 4096, kSlot = (1 << 20) + 3;
  for (bool wide : {false, true}) {
    auto cache = Device<uint8_t>::sparse((kSlot + 1) * kTokenSize);
    SPECFAST_LAUNCH(wide ? writes_slot<int64_t> : writes_slot<unsigned>, 1, 1, 0, nullptr,
                    cache.data(), (unsigned)kSlot, (unsigned)kTokenSize);
    CHECK_EQ(cache.data()[kSlot * kTokenSize], wide ? 7 : 0);
    CHECK_EQ(cache.data()[3 * kTokenSize], wide ? 0 : 7);
  }
}

// --- collectives ---

enum Bug { kNone, kDiverges, kMeetsAnother, kNotInMask, kReadsOutside, kHasExited };

template <Bug kBug>
__global__ void shuffles(int* out) {
  int lane = (int)threadIdx.x, v = lane;
  unsigned mask = kBug == kNotInMask || kBug == kReadsOutside ? 0x7fffffff : kFullMask;
  if (kBug == kHasExited && lane == 0) return;
  if (kBug == kDiverges) {
    if (lane < 16) v = __shfl_xor_sync(mask, v, 1);
  } else if (kBug == kNotInMask) {
    v = __shfl_sync(mask, v, 0);
  } else if (kBug == kMeetsAnother && lane >= 16) {
    v = __shfl_xor_sync(mask, v, 1);
  } else if (kBug != kReadsOutside || lane < 31) {
    v = __shfl_xor_sync(mask, v, 1);
  }
  out[lane] = v;
}

TEST(a_divergent_shuffle_is_caught) {
  dies(last_words([] { one_block(shuffles<kDiverges>, 32); }),
       "this thread exits, thread 0 waits for it in __shfl_xor_sync at", "thread (16, 0, 0)");
  dies(last_words([] { one_block(shuffles<kMeetsAnother>, 32); }), "meets __shfl_xor_sync at",
       "thread (16, 0, 0)");
  dies(last_words([] { one_block(shuffles<kNotInMask>, 32); }), "lane 31 is not in its mask",
       "thread (31, 0, 0)");
  dies(last_words([] { one_block(shuffles<kReadsOutside>, 32); }), "lane 30 reads lane 31",
       "block (0, 0, 0)");
  dies(last_words([] { one_block(shuffles<kHasExited>, 32); }), "lanes 0x1 of mask 0xffffffff",
       "thread (1, 0, 0)");
  dies(last_words([] { one_block(shuffles<kNone>, 31); }), "lanes 0x80000000 of mask 0xffffffff",
       "thread (0, 0, 0)");
  CHECK_EQ(last_words([] { one_block(shuffles<kNone>, 32); }), "");
}

template <Bug kBug>
__global__ void barriers(int* out) {
  int i = (int)threadIdx.x;
  if (kBug == kHasExited && i == 40) return;
  if (kBug == kMeetsAnother && i < 32) {
    __syncthreads();
  } else if (kBug == kDiverges && i < 32) {
    __syncwarp(i < 16 ? kFullMask : kFullMask << 1);
  } else {
    __syncthreads();
  }
  out[i] = i;
}

TEST(a_divergent_barrier_is_caught) {
  dies(last_words([] { one_block(barriers<kHasExited>, 64); }), "wait in __syncthreads at",
       "thread (40, 0, 0)");
  emu::schedule.order = emu::Order::reverse;
  dies(last_words([] { one_block(barriers<kHasExited>, 64); }), "wait in __syncthreads at",
       "thread (40, 0, 0)");
  emu::schedule = {};
  dies(last_words([] { one_block(barriers<kMeetsAnother>, 64); }), "meets __syncthreads at",
       "thread (32, 0, 0)");
  auto words = last_words([] { one_block(barriers<kDiverges>, 64); });
  dies(words, "deadlock", "in kernel kernel, block (0, 0, 0)");
  dies(words, "thread 0 waits in __syncwarp at", "thread 32 waits in __syncthreads at");
  CHECK_EQ(last_words([] { one_block(barriers<kNone>, 64); }), "");
}

template <bool kFixed>
__global__ void exits_before_barrier(int* out) {
  out[threadIdx.x] = 0;
  if (!kFixed && threadIdx.x < 32) return;
  __syncthreads();
}

TEST(an_exited_thread_at_a_barrier_is_caught) {
  dies(last_words([] { one_block(exits_before_barrier<false>, 64); }),
       "__syncthreads: 32 threads of the block have exited", "thread (32, 0, 0)");
  CHECK_EQ(last_words([] { one_block(exits_before_barrier<true>, 64); }), "");
}

// --- launches ---

__global__ void nothing(int*) {}

TEST(an_impossible_launch_is_caught) {
  auto launch = [](dim3 grid, dim3 block, size_t bytes) {
    return last_words([=] { SPECFAST_LAUNCH(nothing, grid, block, bytes, nullptr, nullptr); });
  };
  dies(launch(1, 32, emu::kMaxShared + 1), "166913 bytes of dynamic shared memory", "nothing");
  dies(launch(1, 1025, 0), "a block of 1025 threads", "nothing");
  dies(launch(dim3(1, 65536), 32, 0), "a grid of 1 x 65536 x 1", "nothing");
  CHECK_EQ(launch(1, 1024, emu::kMaxShared), "");
  CHECK_EQ(launch(dim3(1, 65535), 1, 0), "");
  CHECK_EQ(launch(dim3(0, 9), 1024, 0), "");
}

}  // namespace
#endif
