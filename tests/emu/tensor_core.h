// The host twins of csrc/cuda/ptx.cuh: mma, ldmatrix and cp.async.
#pragma once
#include <cstring>

#include "block.h"

namespace emu {

struct MmaRegisters {
  float c[4];
  uint32_t a[4], b[2];
};

// c += a b for a 16x16 and b 16x8 of bf16, in the register layout of mma.sync.m16n8k16.row.col.
// Each element adds its sixteen products, which are exact, in ascending k, rounding to float each
// time; hardware promises no order, so compare its results within a bound.
void multiply_m16n8k16(const MmaRegisters* const (&in)[32], MmaRegisters* const (&out)[32]);

inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         EMU_SITE("mma.sync.m16n8k16")) {
  MmaRegisters mine;
  memcpy(mine.c, c, sizeof c), memcpy(mine.a, a, sizeof a), memcpy(mine.b, b, sizeof b);
  mine = collective<MmaRegisters>(site, 0xffffffff, mine, [](const auto& lanes) {
    const MmaRegisters* in[32];
    MmaRegisters* out[32];
    for (int lane = 0; lane < 32; lane++) in[lane] = &lanes.in(lane), out[lane] = &lanes.out(lane);
    multiply_m16n8k16(in, out);
  });
  memcpy(c, mine.c, sizeof c);
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
