#include "core_math.h"

#include "core/noise.h"
#include "core/sort_key.h"
#include "cpu/simd.h"

namespace specfast::cpu::SPECFAST_TIER {

void core_math(CoreMath function, const float* x, float* out, int64_t n) {
  FloatEnv env;
  for (int64_t i = 0; i < n; i += 16) {
    F32x16 v = load(x + i);
    switch (function) {
#define SPECFAST_CASE(name)            \
  case CoreMath::name:                 \
    store(out + i, specfast::name(v)); \
    break;
      SPECFAST_CORE_MATH(SPECFAST_CASE)
#undef SPECFAST_CASE
    }
  }
}

void uniforms(const uint32_t* words, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store(out + i, uniform(load((const int32_t*)words + i)));
}

void sort_keys(const float* x, int32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store(out + i, sort_key(load(x + i)));
}

void noise_words(uint64_t seed, uint32_t position, const uint32_t* c, uint32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    PhiloxBlock<I32x16> block =
        keyed_noise(load((const int32_t*)c + i), NoiseKey{seed, position, 0x4103u, 9u});
    int32_t words[4][16];
    store(words[0], block.x0);
    store(words[1], block.x1);
    store(words[2], block.x2);
    store(words[3], block.x3);
    for (int lane = 0; lane < 16; lane++)
      for (int w = 0; w < 4; w++) out[4 * (i + lane) + w] = (uint32_t)words[w][lane];
  }
}

}  // namespace specfast::cpu::SPECFAST_TIER
