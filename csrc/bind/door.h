// The C++ door: every tensor is checked here, once, and named in the message; then the op runs
// where its tensors are.
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <stdexcept>

#include "checks.h"
#include "kernels.h"

#define SPECFAST_REGISTER_CPU(op) \
  STABLE_TORCH_LIBRARY_IMPL(specfast, CPU, m) { m.impl(#op, TORCH_BOX(&op)); }

// An op's launchers, and its registration, for each device that this build has kernels for.
#ifdef SPECFAST_WITH_CUDA
#define SPECFAST_LAUNCHERS(op) #op, cpu::op, cuda::op
#define SPECFAST_REGISTER(op) \
  SPECFAST_REGISTER_CPU(op)   \
  STABLE_TORCH_LIBRARY_IMPL(specfast, CUDA, m) { m.impl(#op, TORCH_BOX(&op)); }
#else
#define SPECFAST_LAUNCHERS(op) #op, cpu::op
#define SPECFAST_REGISTER(op) SPECFAST_REGISTER_CPU(op)
#endif

namespace specfast::bind {

// What an op with these sizes needs on CUDA.
template <class Params>
int64_t workspace_bytes(const Params& p) {
#ifdef SPECFAST_WITH_CUDA
  return cuda::workspace_bytes(p);
#else
  return (void)p, 0;
#endif
}

inline void torch_parallel_for(int64_t n, int64_t grain, RangeBody body) {
  if (n > 0) torch::stable::parallel_for(0, n, grain, body);
}

// torch's current stream on that device.
cuda::Stream current_stream(int32_t device);

class Door {
 public:
  // Values are checked on the CPU only: to see those on CUDA the op would have to wait for them.
  bool on_cuda() const { return device_ >= 0; }

  // All of an op's tensors are where the first is.
  void check_device(const Tensor& t, const char* name) {
    int32_t device = t.is_cuda() ? t.get_device_index() : kCpu;
    if (!first_) first_ = name, device_ = device;
    STD_TORCH_CHECK(device == device_, name, ": is on ", device_text(device), ", but ", first_,
                    " on ", device_text(device_), "; an op's tensors share one device");
  }

  // The dtype of an op's activations: float32, on CUDA also bfloat16 (behind the same pointer).
  DType activations(const Tensor& t, const char* name) {
    check_device(t, name);
    if (on_cuda()) return storage_dtype(t, name);
    check_dtype(t, name, ScalarType::Float);
    return DType::f32;
  }

  // Device, dtype, shape and density at once; the pointer that a params struct wants.
  const float* float_rows(const Tensor& t, const char* name, Shape shape,
                          DType dtype = DType::f32) {
    check(t, name, shape, scalar_type(dtype));
    check_dense_rows(t, name);
    return input<float>(t);
  }
  float* float_rows_out(const Tensor& t, const char* name, Shape shape, DType dtype = DType::f32) {
    float_rows(t, name, shape, dtype);
    return output<float>(t);
  }
  const float* float_in(const Tensor& t, const char* name, Shape shape, DType dtype = DType::f32) {
    check(t, name, shape, scalar_type(dtype));
    check_contiguous(t, name);
    return input<float>(t);
  }
  float* float_out(const Tensor& t, const char* name, Shape shape, DType dtype = DType::f32) {
    float_in(t, name, shape, dtype);
    return output<float>(t);
  }
  const int32_t* i32_in(const Tensor& t, const char* name, Shape shape) {
    check(t, name, shape, ScalarType::Int);
    check_contiguous(t, name);
    return input<int32_t>(t);
  }
  int32_t* i32_out(const Tensor& t, const char* name, Shape shape) {
    i32_in(t, name, shape);
    return output<int32_t>(t);
  }
  const int64_t* i64_in(const Tensor& t, const char* name, Shape shape) {
    check(t, name, shape, ScalarType::Long);
    check_contiguous(t, name);
    return input<int64_t>(t);
  }

  // Null where none is given.
  const float* float_in(const std::optional<Tensor>& t, const char* name, Shape shape,
                        DType dtype = DType::f32) {
    return t ? float_in(*t, name, shape, dtype) : nullptr;
  }
  float* float_out(const std::optional<Tensor>& t, const char* name, Shape shape,
                   DType dtype = DType::f32) {
    return t ? float_out(*t, name, shape, dtype) : nullptr;
  }
  const int32_t* i32_in(const std::optional<Tensor>& t, const char* name, Shape shape) {
    return t ? i32_in(*t, name, shape) : nullptr;
  }
  int32_t* i32_out(const std::optional<Tensor>& t, const char* name, Shape shape) {
    return t ? i32_out(*t, name, shape) : nullptr;
  }

  // Where an op keeps what it has found so far, on CUDA; the CPU's have their own room.
  void* workspace(const std::optional<Tensor>& t, int64_t bytes) {
    int64_t got = t ? t->numel() : 0;
    if (t) check(*t, "workspace", {-1}, ScalarType::Byte), check_contiguous(*t, "workspace");
    STD_TORCH_CHECK(!on_cuda() || got >= bytes, "workspace: must have ", bytes, " bytes, got ",
                    got);
    void* data = t ? output<void>(*t) : nullptr;
    STD_TORCH_CHECK((uintptr_t)data % 16 == 0, "workspace: must be 16-byte aligned");
    return data;
  }

  template <class Params>
  void run(const Params& p, const char* op, void (*on_cpu)(const Params&, ParallelFor),
           void (*on_device)(const Params&, cuda::Stream) = nullptr) const {
    if (!on_cuda()) return on_cpu(p, torch_parallel_for);
    try {
      cuda::Stream stream = current_stream(device_);
      torch::stable::accelerator::DeviceGuard guard(device_);
      on_device(p, stream);
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(op) + ": " + error.what());
    }
  }

 private:
  static constexpr int32_t kCpu = -1;

  static ScalarType scalar_type(DType dtype) {
    return dtype == DType::f32 ? ScalarType::Float : ScalarType::BFloat16;
  }

  static std::string device_text(int32_t device) {
    return device == kCpu ? "cpu" : "cuda:" + std::to_string(device);
  }

  void check(const Tensor& t, const char* name, Shape shape, ScalarType dtype) {
    check_device(t, name);
    check_dtype(t, name, dtype);
    check_shape(t, name, shape);
  }

  const char* first_ = nullptr;
  int32_t device_ = kCpu;
};

}  // namespace specfast::bind
