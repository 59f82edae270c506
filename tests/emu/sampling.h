// Rows of logits and what each is drawn by, for the tests of the ops that sample: the same on the
// CPU and on the device.
#pragma once
#include "core/bf16.h"
#include "device.h"

namespace sampling {

using namespace device;
using specfast::Bf16;
using specfast::DType;

constexpr float kInf = __builtin_inff(), kNan = __builtin_nanf("");

struct Settings {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f, min_p = 0.0f;
  int64_t seed = 7;
  int32_t position = 0;
};

template <class T>
T as(float x) {
  return specfast::narrow<T>(x);
}

// Normal logits, `spread` wide.
inline std::vector<float> logits(int64_t vocab, unsigned seed, float spread = 3.0f) {
  return map<float>(normal((size_t)vocab, seed), [=](float x) { return spread * x; });
}

class Rows {
 public:
  // stride >= vocab; what lies between rows would win if it was read.
  explicit Rows(int64_t vocab, int64_t stride = 0) : V(vocab), stride(stride ? stride : vocab) {}

  void add(std::vector<float> row, const Settings& s = {}) {
    row.resize((size_t)stride, kInf);
    logits.insert(logits.end(), row.begin(), row.end());
    temperature.push_back(s.temperature), top_k.push_back(s.top_k), top_p.push_back(s.top_p);
    min_p.push_back(s.min_p), seeds.push_back(s.seed), positions.push_back(s.position);
  }
  int64_t R() const { return (int64_t)seeds.size(); }
  // Only such logits as bf16 has.
  void round() {
    for (float& x : logits) x = specfast::widen(as<Bf16>(x));
  }
  template <class Params>
  void set(Params& p) const {
    p.logits = logits.data(), p.logits_stride = stride, p.R = R(), p.V = V;
    p.temperature = temperature.data(), p.top_k = top_k.data(), p.top_p = top_p.data();
    p.min_p = min_p.data(), p.seeds = seeds.data(), p.positions = positions.data();
  }

  int64_t V, stride;
  std::vector<float> logits, temperature, top_p, min_p;
  std::vector<int64_t> seeds;
  std::vector<int32_t> top_k, positions;
};

// T: float or Bf16.
template <class T>
struct DeviceRows {
  explicit DeviceRows(const Rows& r)
      : rows(r),
        logits(map<T>(r.logits, as<T>)),
        temperature(r.temperature),
        top_p(r.top_p),
        min_p(r.min_p),
        seeds(r.seeds),
        top_k(r.top_k),
        positions(r.positions) {}

  template <class Params>
  void set(Params& p) const {
    rows.set(p);
    p.logits = reinterpret_cast<const float*>(logits.data());
    p.dtype = sizeof(T) == 2 ? DType::bf16 : DType::f32;
    p.temperature = temperature.data(), p.top_k = top_k.data(), p.top_p = top_p.data();
    p.min_p = min_p.data(), p.seeds = seeds.data(), p.positions = positions.data();
  }

  const Rows& rows;
  Device<T> logits;
  Device<float> temperature, top_p, min_p;
  Device<int64_t> seeds;
  Device<int32_t> top_k, positions;
};

inline std::vector<int32_t> joined(std::initializer_list<std::vector<int32_t>> parts,
                                   const std::vector<float>& floats = {}) {
  std::vector<int32_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  size_t n = all.size();
  all.resize(n + floats.size());
  if (!floats.empty()) memcpy(all.data() + n, floats.data(), floats.size() * sizeof(float));
  return all;
}

// Pseudo-random choices that are the same everywhere.
template <class T>
T pick(std::initializer_list<T> values, int64_t n) {
  uint64_t hash = (uint64_t)n * 0x9E3779B97F4A7C15u;
  return values.begin()[(hash >> 33) % values.size()];
}

// Every kind of filter, alone and with others.
inline Settings some_settings(int64_t n, int64_t vocab) {
  Settings s;
  s.temperature = pick({0.0f, 0.02f, 0.7f, 1.0f, 1.0f, 2.5f}, n);
  s.top_k = pick<int32_t>({0, 0, 1, 7, 50, 128, 129, (int32_t)(vocab / 2), (int32_t)vocab}, 7 * n);
  s.top_p = pick({1.0f, 1.0f, 0.0f, 0.3f, 0.9f, 0.9999f, kNan}, 11 * n);
  s.min_p = pick({0.0f, 0.0f, 1e-7f, 0.05f, 2.0f}, 13 * n);
  s.seed = n * 1000003, s.position = (int32_t)(n % 5);
  return s;
}

// Logits of every kind that a model, a mask or a fault may give; rows 0 and 1 have no token.
inline std::vector<float> some_logits(int64_t n, int64_t vocab) {
  std::vector<float> x = logits(vocab, (unsigned)n);
  auto at = [&](int64_t i) -> float& { return x[(size_t)(i % vocab)]; };
  switch (n % 12) {
    case 0:
      std::fill(x.begin(), x.end(), -kInf);
      break;
    case 1:
      at(5 * n) = kNan;
      break;
    case 2:
      for (float& v : x) v = std::round(v);
      break;  // ties at every rank
    case 3:
      std::fill(x.begin(), x.end(), -2.5f);
      break;
    case 4:
      for (float& v : x) v = v > 0 ? 0.0f : -0.0f;
      break;
    case 5:
      for (float& v : x) v = v > 3 ? v : -kInf;
      at(n) = 1.0f;
      break;
    case 6:
      at(3 * n) = at(17 * n) = kInf;
      break;
    case 7:
      for (float& v : x) v *= 1e37f;
      break;
    case 8:
      at(n) = 40.0f;
      break;
    case 9:
      for (float& v : x) v *= 1e-3f;
      break;
    default:
      break;
  }
  return x;
}

// Distinct target ids, neither dense nor in order.
inline std::vector<int32_t> some_map(int64_t V) {
  std::vector<int32_t> d2t(V);
  for (int64_t i = 0; i < V; i++) d2t[i] = (int32_t)(5 * (V - i) + i % 3);
  return d2t;
}

}  // namespace sampling
