// The C++ door: every tensor is checked here, once, and named in the message.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "core/parallel.h"
#include "params.h"

namespace specfast::bind {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline void torch_parallel_for(int64_t n, int64_t grain, RangeBody body) {
  if (n > 0) torch::stable::parallel_for(0, n, grain, body);
}

inline std::string shape_text(const Tensor& t) {
  std::string s = "[";
  for (int64_t d = 0; d < t.dim(); d++) s += (d ? ", " : "") + std::to_string(t.size(d));
  return s + "]";
}

inline std::string shape_text(std::initializer_list<int64_t> shape) {
  std::string s = "[";
  for (int64_t n : shape) s += (s.size() > 1 ? ", " : "") + (n < 0 ? "*" : std::to_string(n));
  return s + "]";
}

inline void check_dtype(const Tensor& t, const char* name, ScalarType want) {
  STD_TORCH_CHECK(t.scalar_type() == want, name, ": dtype must be ",
                  torch::headeronly::toString(want), ", got ",
                  torch::headeronly::toString(t.scalar_type()));
}

// -1 in `shape` allows any size.
inline void check_shape(const Tensor& t, const char* name, std::initializer_list<int64_t> shape) {
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

inline int64_t row_stride(const Tensor& t) {
  return t.dim() > 0 && t.size(0) > 1 ? t.stride(0) : t.numel();
}

template <class T>
const T* input(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <class T>
T* output(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

// Dtype, shape and density at once; the pointer that a params struct wants.
inline const float* f32_rows(const Tensor& t, const char* name,
                             std::initializer_list<int64_t> shape) {
  check_dtype(t, name, ScalarType::Float);
  check_shape(t, name, shape);
  check_dense_rows(t, name);
  return input<float>(t);
}
inline const float* f32_in(const Tensor& t, const char* name,
                           std::initializer_list<int64_t> shape) {
  check_contiguous(t, name);
  return f32_rows(t, name, shape);
}
inline const float* f32_in(const std::optional<Tensor>& t, const char* name,
                           std::initializer_list<int64_t> shape) {
  return t ? f32_in(*t, name, shape) : nullptr;
}
inline const int32_t* i32_in(const Tensor& t, const char* name,
                             std::initializer_list<int64_t> shape) {
  check_dtype(t, name, ScalarType::Int);
  check_shape(t, name, shape);
  check_contiguous(t, name);
  return input<int32_t>(t);
}
inline const int64_t* i64_in(const Tensor& t, const char* name,
                             std::initializer_list<int64_t> shape) {
  check_dtype(t, name, ScalarType::Long);
  check_shape(t, name, shape);
  check_contiguous(t, name);
  return input<int64_t>(t);
}
inline float* f32_out(const Tensor& t, const char* name, std::initializer_list<int64_t> shape) {
  f32_in(t, name, shape);
  return output<float>(t);
}
inline float* f32_out(const std::optional<Tensor>& t, const char* name,
                      std::initializer_list<int64_t> shape) {
  return t ? f32_out(*t, name, shape) : nullptr;
}
inline int32_t* i32_out(const Tensor& t, const char* name, std::initializer_list<int64_t> shape) {
  i32_in(t, name, shape);
  return output<int32_t>(t);
}
inline int32_t* i32_out(const std::optional<Tensor>& t, const char* name,
                        std::initializer_list<int64_t> shape) {
  return t ? i32_out(*t, name, shape) : nullptr;
}

inline const int32_t* i32_in(const std::optional<Tensor>& t, const char* name,
                             std::initializer_list<int64_t> shape) {
  return t ? i32_in(*t, name, shape) : nullptr;
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

// cache: [2, num_blocks, block_size, num_kv_heads, head_dim].
inline KvLayer kv_layer(const Tensor& cache, const char* name) {
  check_shape(cache, name, {2, -1, -1, -1, -1});
  check_contiguous(cache, name);
  DType dtype = storage_dtype(cache, name);
  return {
      cache.mutable_data_ptr(), cache.size(1), cache.size(2), cache.size(3), cache.size(4), dtype};
}

}  // namespace specfast::bind
