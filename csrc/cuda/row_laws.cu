#include "cuda/row_laws.cuh"

namespace specfast::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads) find_peaks(LogitRows p, LawWork work) {
  int64_t row = work.slices.row_of_block();
  Slice s = work.slices.of_block();
  PeakSeen seen;
  each_quad<16>(logits_row<T>(p, row), s,
                [&](int32_t first, const Quad& x) { seen.see(first, x); });
  Rank peak = block_best(seen.rank());
  if (threadIdx.x == 0) work.peaks[row * work.slices.count + s.index] = peak;
  if (filter_of(p, row).any()) work.clear(row, s);
}

template <class T>
__global__ void __launch_bounds__(kThreads) weigh_filtered(LogitRows p, LawWork work) {
  int64_t row = work.slices.row_of_block();
  if (!filter_of(p, row).any()) return;
  RowLaw law = row_law(p, row, work.peak(row));
  if (law.drawn)
    weigh_slice<T, false>(p, work, law, row, work.slices.of_block(), [](const Quad&) {});
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) settle_laws(LogitRows p, LawWork work) {
  SPECFAST_SHARED(Rank[kRoom], room);
  int64_t row = blockIdx.x;
  RowLaw law = row_law(p, row, work.peak(row));
  if (law.drawn && law.filter.any()) {
    BinTokens<T> tokens(p, work, law, row, room);
    law.support = SupportFinder<T, false>(work, row, tokens).find(law.filter, law.scale.exponent);
  }
  if (threadIdx.x == 0) work.laws[row] = law, work.totals[row] = work.surprises[row] = 0;
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_masses(LogitRows p, LawWork work) {
  int64_t row = work.slices.row_of_block();
  const RowLaw law = work.laws[row];
  if (!law.drawn) return;
  Wide total = 0, surprise = 0;
  float exponent = law.scale.exponent;
  each_quad<8>(logits_row<T>(p, row), work.slices.of_block(), [&](int32_t first, const Quad& x) {
    Quad z = law.supported(first, x);
    for (int j = 0; j < 4; j++) {
      float w = weight(z.v[j], exponent);
      total += mass(w);
      surprise += mass(w * (exponent - max(z.v[j] * kLog2e, -0x1p127f)));
    }
  });
  total = block_sum(total), surprise = block_sum(surprise);
  if (threadIdx.x > 0) return;
  atomicAdd(&work.totals[row], total);
  atomicAdd(&work.surprises[row], surprise);
}

template <class T>
void launch_plan(const LogitRows& p, const LawWork& work, Stream stream) {
  dim3 slices = work.slices.grid(p.R);
  SPECFAST_LAUNCH(find_peaks<T>, slices, kThreads, 0, stream, p, work);
  SPECFAST_LAUNCH(weigh_filtered<T>, slices, kThreads, 0, stream, p, work);
  SPECFAST_LAUNCH(settle_laws<T>, dim3((unsigned)p.R), kThreads, 0, stream, p, work);
}

}  // namespace

void plan_laws(const LogitRows& p, const LawWork& work, Stream stream) {
  p.dtype == DType::bf16 ? launch_plan<Bf16>(p, work, stream) : launch_plan<float>(p, work, stream);
}

void measure_laws(const LogitRows& p, const LawWork& work, Stream stream) {
  auto kernel = p.dtype == DType::bf16 ? sum_masses<Bf16> : sum_masses<float>;
  SPECFAST_LAUNCH(kernel, work.slices.grid(p.R), kThreads, 0, stream, p, work);
}

}  // namespace specfast::cuda
