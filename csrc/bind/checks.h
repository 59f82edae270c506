// Checks of single tensors; each failure names the tensor.
#pragma once
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <initializer_list>
#include <string>

#include "params.h"

namespace specfast::bind {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Shape = std::initializer_list<int64_t>;  // -1: any size

inline std::string shape_text(const Tensor& t) {
  std::string s = "[";
  for (int64_t d = 0; d < t.dim(); d++) s += (d ? ", " : "") + std::to_string(t.size(d));
  return s + "]";
}

inline std::string shape_text(Shape shape) {
  std::string s = "[";
  for (int64_t n : shape) s += (s.size() > 1 ? ", " : "") + (n < 0 ? "*" : std::to_string(n));
  return s + "]";
}

inline void check_dtype(const Tensor& t, const char* name, ScalarType want) {
  STD_TORCH_CHECK(t.scalar_type() == want, name, ": dtype must be ",
                  torch::headeronly::toString(want), ", got ",
                  torch::headeronly::toString(t.scalar_type()));
}

inline void check_shape(const Tensor& t, const char* name, Shape shape) {
  bool ok = t.dim() == (int64_t)shape.size();
  int64_t d = 0;
  for (int64_t n : shape) {
    ok = ok && (n < 0 || t.size(d) == n);
    d++;
  }
  STD_TORCH_CHECK(ok, name, ": shape must be ", shape_text(shape), ", got ", shape_text(t));
}

// Dense in every dimension but the first.
inline void check_dense_rows(const Tensor& t, const char* name) {
  if (t.numel() == 0) return;  // strides of nothing say nothing
  int64_t expected = 1;
  for (int64_t d = t.dim() - 1; d > 0; d--) {
    STD_TORCH_CHECK(t.size(d) == 1 || t.stride(d) == expected, name,
                    ": rows must be dense (call .contiguous())");
    expected *= t.size(d);
  }
}

inline void check_contiguous(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.is_contiguous(), name, ": must be contiguous");
}

template <class T>
const T* input(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <class T>
T* output(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

inline int64_t row_stride(const Tensor& t) {
  return t.dim() > 0 && t.size(0) > 1 ? t.stride(0) : t.numel();
}

inline void check_vocabulary(int64_t size, const char* name) {
  STD_TORCH_CHECK(size >= 1 && size < INT32_MAX, name, ": needs a vocabulary, got ", size,
                  " columns");
}

inline DType storage_dtype(const Tensor& t, const char* name) {
  ScalarType s = t.scalar_type();
  STD_TORCH_CHECK(s == ScalarType::Float || s == ScalarType::BFloat16, name,
                  ": dtype must be float32 or bfloat16, got ", torch::headeronly::toString(s));
  return s == ScalarType::Float ? DType::f32 : DType::bf16;
}

}  // namespace specfast::bind
