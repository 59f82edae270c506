// Registers only, so sanitizers have nothing to see here, and most of what a test of attention
// does: compiled without them (CMakeLists.txt).
#include "tensor_core.h"

namespace emu {
namespace {

float bf16_half(uint32_t pair, int half) {
  uint32_t bits = half ? pair & 0xffff0000u : pair << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

void multiply_m16n8k16(const MmaRegisters* const (&in)[32], MmaRegisters* const (&out)[32]) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; lane++) {
    int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < 2; half++) {
      for (int r = 0; r < 4; r++)
        a[group + r % 2 * 8][pair + half + r / 2 * 8] = bf16_half(in[lane]->a[r], half);
      for (int r = 0; r < 2; r++) {
        b[pair + half + r * 8][group] = bf16_half(in[lane]->b[r], half);
        c[group + r * 8][pair + half] = in[lane]->c[2 * r + half];
      }
    }
  }
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++)
      for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) out[lane]->c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

}  // namespace emu
