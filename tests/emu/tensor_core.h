// The host twins of csrc/cuda/ptx.cuh: mma, ldmatrix and cp.async.
#pragma once
#include <cstring>

#include "block.h"

namespace emu {

inline float bf16_half(uint32_t pair, int half) {
  uint32_t bits = half ? pair & 0xffff0000u : pair << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

struct MmaOperands {
  const float* c;
  const uint32_t *a, *b;
};
struct MmaResult {
  float c[4];
};

// c += a b for a 16x16 and b 16x8 of bf16, in the register layout of mma.sync.m16n8k16.row.col.
// Each element adds its sixteen products, which are exact, in ascending k, rounding to float each
// time; hardware promises no order, so compare its results within a bound.
inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         EMU_SITE("mma.sync.m16n8k16")) {
  MmaResult result =
      collective<MmaResult>(site, 0xffffffff, MmaOperands{c, a, b}, [](const auto& lanes) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; lane++) {
          int group = lane / 4, pair = lane % 4 * 2;
          const MmaOperands& in = lanes.in(lane);
          for (int half = 0; half < 2; half++) {
            for (int r = 0; r < 4; r++)
              left[group + r % 2 * 8][pair + half + r / 2 * 8] = bf16_half(in.a[r], half);
            for (int r = 0; r < 2; r++)
              right[pair + half + r * 8][group] = bf16_half(in.b[r], half);
          }
        }
        for (int lane = 0; lane < 32; lane++)
          for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float sum = lanes.in(lane).c[i];
            for (int k = 0; k < 16; k++) sum += left[row][k] * right[k][column];
            lanes.out(lane).c[i] = sum;
          }
      });
  memcpy(c, result.c, sizeof c);
}

template <int Count>
struct Matrices {
  uint32_t r[Count];
};

// ldmatrix.m8n8.xCount.b16: lane 8 i + j points at row j of matrix i, 16 bytes of shared memory;
// lane l gets elements 2 (l % 4) and the next of row l / 4, or transposed of column l / 4.
template <int Count>
void ldmatrix(uint32_t (&r)[Count], const void* row, bool transposed, EMU_SITE("ldmatrix")) {
  if (current->lane < 8 * Count) {
    if ((uintptr_t)row % 16) fail("ldmatrix: row %p is not 16-byte aligned", row);
    current->block->shared.check(row, 16, "ldmatrix");
  }
  auto result = collective<Matrices<Count>>(site, 0xffffffff, row, [transposed](const auto& lanes) {
    for (int i = 0; i < Count; i++) {
      uint16_t m[8][8];
      for (int j = 0; j < 8; j++) memcpy(m[j], lanes.in(8 * i + j), 16);
      for (int lane = 0; lane < 32; lane++) {
        int line = lane / 4, at = lane % 4 * 2;
        uint32_t low = transposed ? m[at][line] : m[line][at];
        uint32_t high = transposed ? m[at + 1][line] : m[line][at + 1];
        lanes.out(lane).r[i] = low | high << 16;
      }
    }
  });
  memcpy(r, result.r, sizeof r);
}

inline void cp_async_16(void* shared, const void* global, int bytes) {
  current->copies.push(shared, global, bytes);
}
inline void cp_async_commit() { current->copies.commit(); }
inline void cp_async_wait(int newest) { current->copies.wait((size_t)newest); }

}  // namespace emu
