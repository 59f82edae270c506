// Small-M linear over packed panels of 32 output columns. A lane is one output element and
// accumulates k = 0..K-1 in order, so neither M, nor the tile, nor the threads can change its bits.
#include "cpu/simd.h"
#include "kernels.h"

namespace specfast::cpu::SPECFAST_TIER {
namespace {

constexpr int kPrefetchBytes = 4096;
// Rows swept per pass over the weights: x stays in L2 while each panel is read once.
constexpr int64_t kRowBlock = 96;
#if defined(__AVX512F__)
constexpr int kMaxRows = 12;  // 24 accumulators + 2 weights + 1 broadcast in 32 registers
#elif defined(__AVX2__)
constexpr int kMaxRows = 3;  // 12 accumulators + 4 weights in 16 registers
#else
constexpr int kMaxRows = 4;
#endif

SPECFAST_INLINE void load_panel(const uint16_t* w, F32x16& lo, F32x16& hi) {
  load_bf16_panel(w, lo, hi);
}
SPECFAST_INLINE void load_panel(const float* w, F32x16& lo, F32x16& hi) {
  lo = load(w);
  hi = load(w + 16);
}

SPECFAST_INLINE void store_columns(const LinearParams& p, int64_t row, int64_t column, F32x16 sum) {
  int64_t left = p.N - column;
  if (left <= 0) return;
  int n = left < 16 ? (int)left : 16;
  if (p.bias) sum = sum + load_first(p.bias + column, n);
  if (p.residual) sum = sum + load_first(p.residual + row * p.residual_stride + column, n);
  store_first(p.out + row * p.out_stride + column, sum, n);
}

// Rows [row, row + Rows) of one panel.
template <int Rows, class Weight>
SPECFAST_INLINE void panel_tile(const LinearParams& p, const Weight* w, int64_t panel,
                                int64_t row) {
  F32x16 lo[Rows], hi[Rows];
#pragma GCC unroll 16
  for (int m = 0; m < Rows; m++) lo[m] = hi[m] = broadcast(0.0f);
  const float* x = p.x + row * p.x_stride;
  for (int64_t k = 0; k < p.K; k++) {
    F32x16 w_lo, w_hi;
    const Weight* wk = w + k * kPanel;
    load_panel(wk, w_lo, w_hi);
    for (size_t line = 0; line < kPanel * sizeof(Weight); line += 64)
      __builtin_prefetch((const char*)wk + kPrefetchBytes + line);
#pragma GCC unroll 16  // accumulators must be registers
    for (int m = 0; m < Rows; m++) {
      F32x16 xk = broadcast(x[m * p.x_stride + k]);
      lo[m] = fma(w_lo, xk, lo[m]);
      hi[m] = fma(w_hi, xk, hi[m]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < Rows; m++) {
    store_columns(p, row + m, panel * kPanel, lo[m]);
    store_columns(p, row + m, panel * kPanel + 16, hi[m]);
  }
}

template <int Rows, class Weight>
void panel_rows(const LinearParams& p, const Weight* w, int64_t panel, int64_t row, int64_t rows) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return panel_rows<Rows - 1>(p, w, panel, row, rows);
  }
  panel_tile<Rows>(p, w, panel, row);
}

template <class Weight>
void run(const LinearParams& p, ParallelFor parallel_for) {
  const Weight* weight = static_cast<const Weight*>(p.weight);
  int64_t panels = (p.N + kPanel - 1) / kPanel;
  for (int64_t block = 0; block < p.M; block += kRowBlock) {
    int64_t end = p.M < block + kRowBlock ? p.M : block + kRowBlock;
    parallel_for(panels, 1, [&](int64_t first, int64_t last) {
      FloatEnv env;
      for (int64_t panel = first; panel < last; panel++) {
        const Weight* w = weight + panel * p.K * kPanel;
        for (int64_t row = block; row < end; row += kMaxRows)
          panel_rows<kMaxRows>(p, w, panel, row, end - row);
      }
    });
  }
}

}  // namespace

void linear(const LinearParams& p, ParallelFor parallel_for) {
  if (p.weight_dtype == DType::bf16)
    run<uint16_t>(p, parallel_for);
  else
    run<float>(p, parallel_for);
}

}  // namespace specfast::cpu::SPECFAST_TIER
