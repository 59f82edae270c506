// A float's bits as a signed integer of the same order; -0.0 counts as +0.0.
#pragma once
#include "core/fast_math.h"

namespace specfast {

template <class T>
SPECFAST_HD auto sort_key(T x) {
  auto i = bitcast_i32(x + splat(x, 0.0f));
  return i ^ (shift_right_arithmetic<31>(i) & splat(i, INT32_MAX));
}

SPECFAST_HD float sort_key_float(int32_t key) { return bitcast_f32(key ^ (key >> 31 & INT32_MAX)); }

}  // namespace specfast
