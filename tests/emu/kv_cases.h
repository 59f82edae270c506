// What the tests of the ops that write the cache share.
#pragma once
#include <limits>

#include "core/bf16.h"
#include "device.h"

namespace kv_cases {

using specfast::Bf16;
using specfast::DType;

template <class T>
constexpr DType dtype = sizeof(T) == 2 ? DType::bf16 : DType::f32;

// body(T{}, Element{}): activations of T into a cache of Element.
template <class Body>
void each_dtype(const Body& body) {
  body(float{}, float{});
  body(float{}, Bf16{});
  body(Bf16{}, float{});
  body(Bf16{}, Bf16{});
}

template <class T>
std::vector<float> widened(const std::vector<T>& values) {
  return device::map<float>(values, [](T x) { return specfast::widen(x); });
}
template <class T>
std::vector<T> narrowed(const std::vector<float>& values) {
  return device::map<T>(values, specfast::narrow<T>);
}

// Normal numbers, and one in `rarity` from the edges of what bf16 and fp32 hold: the last three
// floats that bf16 rounds to a number, and the first that it rounds to infinity, among them.
template <class T>
std::vector<T> values(size_t n, std::mt19937& random, unsigned rarity = 200) {
  constexpr int32_t kEdges[] = {0x7f7f7fff, 0x7f7f0000, (int32_t)0xff7f7fff, 0x7f7f8000,
                                0x7f7fffff, 0x7f800000, (int32_t)0xff800000, 0x7fc00000,
                                0x7f800001, 0x00000001, (int32_t)0x80000000, 0x007fffff};
  std::vector<float> result = device::normal(n, (unsigned)random());
  for (float& x : result)
    if (random() % rarity == 0) x = specfast::bitcast_f32(kEdges[random() % std::size(kEdges)]);
  return narrowed<T>(result);
}

inline int64_t between(int64_t first, int64_t last, std::mt19937& random) {
  return first + (int64_t)(random() % (uint64_t)(last - first + 1));
}

// Arithmetic may give any NaN.
inline std::vector<float> with_one_nan(std::vector<float> values) {
  for (float& x : values)
    if (x != x) x = std::numeric_limits<float>::quiet_NaN();
  return values;
}

// `rows` different slots, some of them -1.
inline std::vector<int64_t> random_slots(int64_t rows, int64_t num_slots, std::mt19937& random) {
  std::vector<int64_t> slots((size_t)num_slots);
  for (size_t i = 0; i < slots.size(); i++) slots[i] = (int64_t)i;
  std::shuffle(slots.begin(), slots.end(), random);
  slots.resize((size_t)rows);
  for (int64_t& slot : slots)
    if (random() % 5 == 0) slot = -1;
  return slots;
}

// Row i of `rows` lies at offsets[i].
template <class T>
void scatter(const std::vector<T>& rows, const std::vector<int64_t>& offsets,
             const device::Device<T>& to) {
  size_t width = rows.size() / offsets.size();
  for (size_t i = 0; i < offsets.size(); i++)
    std::copy_n(rows.data() + i * width, width, to.data() + offsets[i]);
}
template <class T>
std::vector<T> gather(const device::Device<T>& from, const std::vector<int64_t>& offsets,
                      int64_t width) {
  device::synchronize();
  std::vector<T> rows;
  for (int64_t offset : offsets)
    rows.insert(rows.end(), from.data() + offset, from.data() + offset + width);
  return rows;
}

// The bytes of several outputs in a row.
template <class... Vectors>
std::vector<unsigned char> bytes(const Vectors&... vectors) {
  std::vector<unsigned char> all;
  auto append = [&](const auto& v) {
    auto* first = reinterpret_cast<const unsigned char*>(v.data());
    all.insert(all.end(), first, first + v.size() * sizeof v[0]);
  };
  (append(vectors), ...);
  return all;
}

}  // namespace kv_cases
