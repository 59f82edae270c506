// bfloat16: the upper half of a float. Widening is exact; narrowing rounds to nearest even and
// keeps NaN a NaN.
#pragma once
#include "core/fast_math.h"

namespace specfast {

struct Bf16 {
  uint16_t bits;
};

SPECFAST_HD float widen(float x) { return x; }
SPECFAST_HD float widen(Bf16 x) { return bitcast_f32((int32_t)((uint32_t)x.bits << 16)); }

template <class T>
SPECFAST_HD T narrow(float x);
template <>
SPECFAST_HD float narrow<float>(float x) {
  return x;
}
template <>
SPECFAST_HD Bf16 narrow<Bf16>(float x) {
  uint32_t u = (uint32_t)bitcast_i32(x);
  return {x != x ? (uint16_t)0x7fc0 : (uint16_t)((u + (u >> 16 & 1) + 0x7fff) >> 16)};
}

}  // namespace specfast
