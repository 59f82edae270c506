// The elementary functions, the noise and the sort key: against double, and on every tier the bits
// of the plain float version.
#include <cmath>
#include <limits>

#include "core/logit_law.h"
#include "core/noise.h"
#include "core/sort_key.h"
#include "everywhere.h"
#include "tiered/core_math.h"

namespace {

using namespace everywhere;
using specfast::cpu::CoreMath;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

#if defined(SPECFAST_X86_TIERS)
#define ON_TIER(tier, call)                           \
  (tier == Tier::avx512 ? specfast::cpu::avx512::call \
   : tier == Tier::avx2 ? specfast::cpu::avx2::call   \
                        : specfast::cpu::scalar::call)
#else
#define ON_TIER(tier, call) specfast::cpu::scalar::call
#endif

float plain(CoreMath function, float x) {
  switch (function) {
#define PLAIN_CASE(name) \
  case CoreMath::name:   \
    return specfast::name(x);
    SPECFAST_CORE_MATH(PLAIN_CASE)
#undef PLAIN_CASE
  }
  return kNan;
}

// The values of `function`, which every tier must agree on.
std::vector<float> evaluate(CoreMath function, std::vector<float> x) {
  size_t n = x.size();
  x.resize((n + 15) / 16 * 16, 0.5f);
  std::vector<float> expected(x.size()), got(x.size());
  for (size_t i = 0; i < x.size(); i++) expected[i] = plain(function, x[i]);
  for (Tier tier : tiers()) {
    ON_TIER(tier, core_math(function, x.data(), got.data(), (int64_t)x.size()));
    for (size_t i = 0; i < x.size(); i++)  // which NaN it is may differ
      if (std::isnan(got[i]) && std::isnan(expected[i])) got[i] = expected[i];
    CHECK_BYTES(got, expected);
  }
  expected.resize(n);
  return expected;
}

float from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

// `count` floats from a to b (of one sign), evenly spread over their bit patterns.
std::vector<float> between(float a, float b, size_t count) {
  uint32_t first, last;
  memcpy(&first, &a, 4);
  memcpy(&last, &b, 4);
  std::vector<float> x(count);
  for (size_t i = 0; i < count; i++)
    x[i] = from_bits((uint32_t)(first + ((double)last - first) * (double)i / (double)(count - 1)));
  return x;
}

template <class Exact>
double worst_error(const std::vector<float>& x, const std::vector<float>& y, Exact exact) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); i++) {
    double want = exact((double)x[i]);
    worst = std::max(worst, std::abs((y[i] - want) / want));
  }
  return worst;
}

void check_error(CoreMath function, const std::vector<float>& x, double (*exact)(double),
                 double bound) {
  CHECK(worst_error(x, evaluate(function, x), exact) < bound);
}

TEST(exp2_poly_is_exact_at_its_ends) {
  auto y = evaluate(CoreMath::exp2_poly, {0.0f, -0.0f, -1.0f});
  CHECK_BYTES(y, (std::vector<float>{1.0f, 1.0f, 0.5f}));
}

TEST(exp2_poly_is_monotone_and_accurate) {
  // -0.0 to -1.0 in a million steps, and every float near -1, -1/2 and -1/4.
  std::vector<float> x = between(-0.0f, -1.0f, 1 << 20);
  auto y = evaluate(CoreMath::exp2_poly, x);
  CHECK(std::is_sorted(y.rbegin(), y.rend()));
  CHECK(worst_error(x, y, [](double f) { return std::exp2(f); }) < 0x1p-22);
  for (float end : {-1.0f, -0.5f, -0.25f}) {
    uint32_t bits;
    memcpy(&bits, &end, 4);
    x = between(from_bits(bits - (1 << 18)), end, (1 << 18) + 1);
    y = evaluate(CoreMath::exp2_poly, x);
    CHECK(std::is_sorted(y.rbegin(), y.rend()));
    CHECK(worst_error(x, y, [](double f) { return std::exp2(f); }) < 0x1p-22);
  }
}

TEST(pow2i_is_a_power_or_zero) {
  std::vector<float> e{-kInf, kNan, -1e30f, -128.0f, -127.0f, -0.0f};
  for (int i = -126; i <= 127; i++) e.push_back((float)i);
  auto y = evaluate(CoreMath::pow2i, e);
  for (size_t i = 0; i < e.size(); i++)
    CHECK_EQ(y[i], e[i] >= -126 ? (float)std::exp2((double)e[i]) : 0.0f);
}

TEST(functions_are_close_to_double) {
  check_error(CoreMath::exp2, between(1e-6f, 126.0f, 100'000), std::exp2, 0x1p-22);
  check_error(CoreMath::exp2, between(-1e-6f, -125.0f, 100'000), std::exp2, 0x1p-22);
  check_error(CoreMath::log, between(1e-37f, 0.9999f, 100'000), std::log, 0x1p-22);
  check_error(CoreMath::log, between(1.0001f, 3e38f, 100'000), std::log, 0x1p-22);
  check_error(
      CoreMath::log1m, between(0x1p-33f, 1 - 0x1p-24f, 100'000),
      [](double v) { return std::log1p(-v); }, 0x1p-22);
  check_error(CoreMath::tanh, between(1e-6f, 20.0f, 100'000), std::tanh, 0x1p-21);
  check_error(CoreMath::tanh, between(-1e-6f, -20.0f, 100'000), std::tanh, 0x1p-21);
  auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  check_error(CoreMath::silu, between(1e-6f, 100.0f, 100'000), silu, 0x1p-21);
  check_error(CoreMath::silu, between(-1e-6f, -10.0f, 100'000), silu, 0x1p-20);
}

TEST(functions_at_their_limits) {
  CHECK_EQ(evaluate(CoreMath::exp2, {-kInf})[0], 0.0f);
  CHECK_EQ(evaluate(CoreMath::log, {1.0f})[0], 0.0f);
  CHECK_EQ(evaluate(CoreMath::log1m, {0.0f})[0], 0.0f);
  CHECK_BYTES(evaluate(CoreMath::tanh, {-1e38f, 1e38f, 0.0f, -kInf}),
              (std::vector<float>{-1.0f, 1.0f, 0.0f, -1.0f}));
  for (CoreMath f : {CoreMath::exp2, CoreMath::tanh, CoreMath::silu})
    CHECK(std::isnan(evaluate(f, {kNan})[0]));
}

TEST(noise_of_any_word_is_finite_and_below_its_bound) {
  std::vector<uint32_t> words{0, 1, 0xffffffff - 128, 0xffffffff, 0x7fffff80, 0x80000000};
  std::mt19937 generator(3);
  while (words.size() < 1 << 16) words.push_back((uint32_t)generator());
  std::vector<float> v(words.size()), got(words.size());
  for (size_t i = 0; i < words.size(); i++) v[i] = specfast::uniform(words[i]);
  for (Tier tier : tiers()) {
    ON_TIER(tier, uniforms(words.data(), got.data(), (int64_t)words.size()));
    CHECK_BYTES(got, v);
  }
  CHECK_EQ(v[0], 0x1p-33f);
  CHECK_EQ(v[2], 1 - 0x1p-24f);
  CHECK_EQ(v[3], 1 - 0x1p-24f);
  auto g = evaluate(CoreMath::gumbel, v), bound = evaluate(CoreMath::gumbel_bound, v);
  for (size_t i = 0; i < v.size(); i++) {
    CHECK(g[i] >= -2.82f && g[i] <= specfast::kMaxGumbel && g[i] < bound[i]);
    CHECK(std::abs(g[i] + std::log(-std::log1p(-(double)v[i]))) < 2e-6);
  }
}

TEST(a_least_mass_is_a_least_weight) {
  std::mt19937_64 generator(5);
  for (int i = 0; i < 100'000; i++) {
    uint64_t least = (generator() >> 24 >> generator() % 40) + 1;  // up to 2^40
    float weight = specfast::weight_of_mass(least);
    CHECK(specfast::mass(weight) >= least);
    CHECK(specfast::mass(std::nextafter(weight, 0.0f)) < least);
  }
}

TEST(mass_share_stays_within_one_and_all) {
  using specfast::mass_share;
  CHECK_EQ(mass_share(0.5f, 1001), 501u);
  CHECK_EQ(mass_share(1.0f, 7), 7u);
  for (float none : {0.0f, -3.0f, 1e-30f, kNan}) CHECK_EQ(mass_share(none, 1000), 1u);
  for (float all : {2.0f, 1e38f, kInf}) CHECK_EQ(mass_share(all, 1000), 1000u);
}

TEST(philox_lanes_are_its_scalar_words) {
  std::vector<uint32_t> counters(64), expected, got(4 * 64);
  std::mt19937 generator(4);
  for (uint32_t& c : counters) c = (uint32_t)generator();
  uint64_t seed = 0x0123456789abcdef;
  for (uint32_t c : counters) {
    auto block = specfast::keyed_noise(c, {seed, 77, 0x4103, 9});
    for (uint32_t word : {block.x0, block.x1, block.x2, block.x3}) expected.push_back(word);
  }
  for (Tier tier : tiers()) {
    ON_TIER(tier, noise_words(seed, 77, counters.data(), got.data(), 64));
    CHECK_BYTES(got, expected);
  }
}

// Whether specfast::max takes them.
template <class A, class B, class = void>
constexpr bool has_max = false;
template <class A, class B>
constexpr bool has_max<A, B, std::void_t<decltype(specfast::max(A(), B()))>> = true;

TEST(max_is_of_floats_only) {
  CHECK((has_max<float, float>));
  CHECK((!has_max<int, int> && !has_max<int64_t, int64_t>));
  CHECK((!has_max<double, float> && !has_max<float, int>));
}

TEST(sort_keys_have_the_order_of_their_floats) {
  std::vector<float> x{-kInf,  -3e38f, -1.0f, -1e-45f, 0.0f, 1e-45f,
                       1e-38f, 1.0f,   1.5f,  3e38f,   kInf};
  std::vector<int32_t> got(16);
  x.resize(16, kInf);
  for (Tier tier : tiers()) {
    ON_TIER(tier, sort_keys(x.data(), got.data(), 16));
    for (size_t i = 1; i < 11; i++) CHECK(got[i - 1] < got[i]);
    for (size_t i = 0; i < 16; i++) {
      CHECK_EQ(got[i], specfast::sort_key(x[i]));
      CHECK_EQ(specfast::sort_key_float(got[i]), x[i]);
    }
  }
  CHECK_EQ(specfast::sort_key(-0.0f), specfast::sort_key(0.0f));
}

}  // namespace
