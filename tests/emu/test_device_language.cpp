// What kernels are written in, against plain loops: run in emulation, this tests the emulator; run
// on a GPU, that the emulator and the hardware agree.
#include "core/bf16.h"
#include "cuda/ptx.cuh"
#include "device.h"

namespace {

using namespace device;
using namespace specfast::cuda;
using specfast::Bf16;

// --- warp collectives ---

enum Collective {
  kShuffle,
  kXor,
  kUp,
  kDown,
  kEights,
  kWide,
  kBallot,
  kAny,
  kAll,
  kMatch,
  kAdd,
  kMin,
  kMax,
  kAnd,
  kOr,
  kExclusiveOr,
  kCollectives
};

// Warp 0: all lanes; warp 1: two groups of lanes at once.
__host__ __device__ unsigned mask_of(int thread) {
  return thread < 32 ? kFullMask : thread < 44 ? 0xfff : 0xfffff000;
}

__global__ void collectives_kernel(const int* x, int64_t* out) {
  int thread = (int)threadIdx.x, lane = thread % 32, v = x[thread];
  unsigned mask = mask_of(thread), u = (unsigned)v;
  int64_t r[kCollectives];
  r[kShuffle] = __shfl_sync(mask, v, lane < 12 || thread < 32 ? 5 : 13);
  r[kXor] = __shfl_xor_sync(mask, v, 3);
  r[kUp] = __shfl_up_sync(mask, v, 2, 4);
  r[kDown] = __shfl_down_sync(mask, v, 1, 4);
  r[kEights] = __shfl_sync(mask, v, lane + 1, 4);
  r[kWide] = (int64_t)__shfl_xor_sync(mask, (double)v * 0x1p40, 1);
  r[kBallot] = __ballot_sync(mask, v & 1);
  r[kAny] = __any_sync(mask, v == 40);
  r[kAll] = __all_sync(mask, v >= 0);
  r[kMatch] = __match_any_sync(mask, v % 4);
  r[kAdd] = __reduce_add_sync(mask, v);
  r[kMin] = __reduce_min_sync(mask, v);
  r[kMax] = __reduce_max_sync(mask, u);
  r[kAnd] = __reduce_and_sync(mask, u);
  r[kOr] = __reduce_or_sync(mask, u);
  r[kExclusiveOr] = __reduce_xor_sync(mask, u);
  __syncwarp(mask);
  for (int i = 0; i < kCollectives; i++) out[thread * kCollectives + i] = r[i];
}

std::vector<int64_t> collectives_of(const std::vector<int>& x, int thread) {
  std::vector<int64_t> r(kCollectives);
  unsigned mask = mask_of(thread);
  int base = thread / 32 * 32, lane = thread % 32, quad = lane & ~3;
  auto at = [&](int other) { return (int64_t)x[(size_t)(base + other)]; };
  r[kShuffle] = at(mask & 1 ? 5 : 13);
  r[kXor] = at(lane ^ 3);
  r[kUp] = at(lane - 2 < quad ? lane : lane - 2);
  r[kDown] = at(lane + 1 < quad + 4 ? lane + 1 : lane);
  r[kEights] = at(quad | ((lane + 1) & 3));
  r[kWide] = at(lane ^ 1) << 40;
  r[kAll] = 1, r[kMin] = INT32_MAX, r[kAnd] = kFullMask;
  for (int other = 0; other < 32; other++) {
    if (!(mask >> other & 1)) continue;
    int64_t v = at(other), bit = (int64_t)1 << other;
    if (v & 1) r[kBallot] |= bit;
    if (v == 40) r[kAny] = 1;
    if (v < 0) r[kAll] = 0;
    if (v % 4 == at(lane) % 4) r[kMatch] |= bit;
    r[kAdd] += v;
    r[kMin] = std::min(r[kMin], v), r[kMax] = std::max(r[kMax], v);
    r[kAnd] &= v, r[kOr] |= v, r[kExclusiveOr] ^= v;
  }
  return r;
}

TEST(collectives_of_a_warp_and_of_parts) {
  std::vector<int> x(64);
  for (size_t i = 0; i < x.size(); i++) x[i] = (int)(i * 37 % 59);
  auto got = everywhere([&] {
    Device<int> in(x);
    Device<int64_t> out(64 * kCollectives);
    SPECFAST_LAUNCH(collectives_kernel, 1, 64, 0, nullptr, in.data(), out.data());
    return out.host();
  });
  for (int thread = 0; thread < 64; thread++) {
    auto expected = collectives_of(x, thread);
    for (int i = 0; i < kCollectives; i++)
      if (int64_t v = got[(size_t)(thread * kCollectives + i)]; v != expected[(size_t)i])
        check::fail(__FILE__, __LINE__) << "collective " << i << " of thread " << thread << ": "
                                        << v << ", not " << expected[(size_t)i] << "\n";
  }
}

// --- barriers and shared memory ---

__global__ void barriers_kernel(int* out, int n) {
  SPECFAST_SHARED(int[3], totals);
  SPECFAST_DYNAMIC_SHARED(int, row);
  int thread = (int)(threadIdx.x + blockDim.x * threadIdx.y);
  row[thread] = thread;
  int odd = __syncthreads_count(thread & 1);
  int any = __syncthreads_or(thread == n), all = __syncthreads_and(thread < n);
  if (thread == 0) totals[0] = odd, totals[1] = any, totals[2] = all;
  __syncthreads();
  int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  out[block * n + thread] =
      row[n - 1 - thread] + 1000 * (totals[0] + 100 * totals[1] + 10 * totals[2]);
}

TEST(barriers_of_a_block_that_ends_within_a_warp) {
  auto got = everywhere([&] {
    Device<int> out(12 * 72);
    SPECFAST_LAUNCH(barriers_kernel, dim3(2, 3, 2), dim3(24, 3), 72 * sizeof(int), nullptr,
                    out.data(), 72);
    return out.host();
  });
  for (int i = 0; i < 12 * 72; i++) CHECK_EQ(got[(size_t)i], 71 - i % 72 + 1000 * (36 + 10));
}

// --- atomics ---

struct Totals {
  int sum, least, once;
  unsigned most, bits, ticket;
  unsigned long long wide;
  float exact;
};

__global__ void atomics_kernel(Totals* t, int* last) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&t->sum, i);
  atomicMin(&t->least, 1000 - i);
  atomicMax(&t->most, (unsigned)i);
  atomicOr(&t->bits, 1u << i % 32);
  atomicAdd(&t->wide, 1ull << 40);
  atomicAdd(&t->exact, 0.5f);
  if (atomicCAS(&t->once, 0, 1) == 0) atomicExch(last, -1);
  __threadfence();
  SPECFAST_SHARED(unsigned, ticket);
  __syncthreads();
  if (threadIdx.x == 0) ticket = atomicAdd(&t->ticket, 1u);
  __syncthreads();
  if (ticket == gridDim.x - 1 && threadIdx.x == 0) *last = t->sum;
}

TEST(atomics_and_the_last_block) {
  everywhere([&] {
    Device<Totals> totals(std::vector<Totals>{{0, 1 << 20, 0, 0, 0, 0, 0, 0}});
    Device<int> last(1);
    SPECFAST_LAUNCH(atomics_kernel, 9, 64, 0, nullptr, totals.data(), last.data());
    Totals t = totals.host()[0];
    CHECK_EQ(t.sum, 575 * 576 / 2);
    CHECK_EQ(t.least, 1000 - 575);
    CHECK_EQ(t.most, 575u);
    CHECK_EQ(t.bits, kFullMask);
    CHECK_EQ(t.wide, 576ull << 40);
    CHECK_EQ(t.exact, 288.0f);
    CHECK_EQ(last.host()[0], t.sum);
    return totals.host();
  });
}

// --- tensor cores ---

// c += a b^T of row-major a [16, 16], b [8, 16], straight from memory.
__global__ void mma_kernel(const uint16_t* a, const uint16_t* b, float* c) {
  int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4 * 2;
  auto pair = [](const uint16_t* p) { return p[0] | (uint32_t)p[1] << 16; };
  uint32_t left[4], right[2];
  float sum[4];
  for (int i = 0; i < 4; i++) left[i] = pair(a + (g + i % 2 * 8) * 16 + t + i / 2 * 8);
  for (int i = 0; i < 2; i++) right[i] = pair(b + g * 16 + t + i * 8);
  for (int i = 0; i < 4; i++) sum[i] = c[(g + i / 2 * 8) * 8 + t + i % 2];
  mma_m16n8k16(sum, left, right);
  for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + t + i % 2] = sum[i];
}

TEST(mma_multiplies) {
  auto narrow = [](float x) { return specfast::narrow<Bf16>(x).bits; };
  auto a = map<uint16_t>(normal(256, 1), narrow), b = map<uint16_t>(normal(128, 2), narrow);
  auto c = normal(128, 3);
  auto got = everywhere([&] {
    Device<uint16_t> left(a), right(b);
    Device<float> sum(c);
    SPECFAST_LAUNCH(mma_kernel, 1, 32, 0, nullptr, left.data(), right.data(), sum.data());
    return sum.host();
  });
  for (size_t row = 0; row < 16; row++)
    for (size_t column = 0; column < 8; column++) {
      double sum = c[row * 8 + column], magnitude = std::abs(sum);
      for (size_t k = 0; k < 16; k++) {
        double product = (double)widen(Bf16{a[row * 16 + k]}) * widen(Bf16{b[column * 16 + k]});
        sum += product, magnitude += std::abs(product);
      }
      CHECK(std::abs(got[row * 8 + column] - sum) <= 17 * 0x1p-23 * magnitude);
    }
}

// Every load of four 8x8 matrices whose element (row, column) of matrix i is 64 i + 8 row + column.
__global__ void ldmatrix_kernel(uint32_t* out) {
  SPECFAST_SHARED(uint4[32], rows);
  int lane = (int)threadIdx.x;
  auto elements = reinterpret_cast<uint16_t*>(&rows[lane]);
  for (int i = 0; i < 8; i++) elements[i] = (uint16_t)(8 * lane + i);
  __syncwarp();
  uint32_t x1[1], x2[2], x4[4];
  auto write = [&](int at, const uint32_t* r, int n) {
    for (int i = 0; i < n; i++) out[(at + i) * 32 + lane] = r[i];
  };
  ldmatrix_x4(x4, &rows[lane]), write(0, x4, 4);
  ldmatrix_x4_trans(x4, &rows[lane]), write(4, x4, 4);
  ldmatrix_x2(x2, &rows[lane % 16]), write(8, x2, 2);
  ldmatrix_x2_trans(x2, &rows[lane % 16]), write(10, x2, 2);
  ldmatrix_x1(x1, &rows[lane % 8]), write(12, x1, 1);
  ldmatrix_x1_trans(x1, &rows[lane % 8]), write(13, x1, 1);
}

TEST(ldmatrix_loads_and_transposes) {
  auto got = everywhere([&] {
    Device<uint32_t> out(14 * 32);
    SPECFAST_LAUNCH(ldmatrix_kernel, 1, 32, 0, nullptr, out.data());
    return out.host();
  });
  const uint32_t matrices[14] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 1, 0, 0};
  const bool transposed[14] = {0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1};
  for (uint32_t i = 0; i < 14; i++)
    for (uint32_t lane = 0; lane < 32; lane++) {
      uint32_t line = lane / 4, at = lane % 4 * 2;
      uint32_t low = 64 * matrices[i] + (transposed[i] ? 8 * at + line : 8 * line + at);
      CHECK_EQ(got[i * 32 + lane], low | (low + (transposed[i] ? 8 : 1)) << 16);
    }
}

// --- cp.async ---

constexpr int kStages = 3;

// Doubles x [n, 4 * 32], stage by stage; of the last row only the first `last` floats are there.
__global__ void pipeline_kernel(const float* x, float* out, int n, int last) {
  SPECFAST_DYNAMIC_SHARED(float4, stages);
  int lane = (int)threadIdx.x;
  auto start = [&](int row) {
    int left = row < n - 1 ? 4 : last - 4 * lane, have = left < 0 ? 0 : left > 4 ? 4 : left;
    const float* from = x + (have ? row * 128 + 4 * lane : 0);
    if (row < n) cp_async_16_fill(&stages[row % kStages * 32 + lane], from, 4 * have);
    cp_async_commit();
  };
  for (int row = 0; row < kStages - 1; row++) start(row);
  for (int row = 0; row < n; row++) {
    cp_async_wait<kStages - 2>();
    __syncwarp();
    start(row + kStages - 1);
    float4 v = stages[row % kStages * 32 + 31 - lane];
    reinterpret_cast<float4*>(out)[row * 32 + lane] =
        make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  }
}

TEST(cp_async_fills_a_pipeline) {
  constexpr int kRows = 7, kLast = 53;
  auto x = normal((kRows - 1) * 128 + kLast, 1);
  auto got = everywhere([&] {
    Device<float> in(x), out(kRows * 128);
    SPECFAST_LAUNCH(pipeline_kernel, 1, 32, kStages * 512, nullptr, in.data(), out.data(), kRows,
                    kLast);
    return out.host();
  });
  x.resize(kRows * 128);
  for (size_t i = 0; i < got.size(); i++)
    CHECK_EQ(got[i], 2 * x[i / 128 * 128 + (31 - i % 128 / 4) * 4 + i % 4]);
}

}  // namespace
