#include "cuda/kv_store.cuh"

namespace specfast::cuda {
namespace {

constexpr int kThreads = 128;

// A thread has a unit of a row: the units of K, then those of V.
template <class T, class Element>
__global__ void __launch_bounds__(kThreads) kv_append_kernel(KvAppendParams p) {
  int64_t row = blockIdx.x, slot = p.slots[row];
  int64_t token_size = p.cache.num_kv_heads * p.cache.head_dim;
  int64_t d = ((int64_t)blockIdx.y * kThreads + threadIdx.x) * kUnit;
  if (!is_slot(p.cache, slot) || d >= 2 * token_size) return;
  bool is_v = d >= token_size;
  const T* in = reinterpret_cast<const T*>(is_v ? p.v : p.k);
  in += row * (is_v ? p.v_stride : p.k_stride);
  Element* out = slot_data<Element>(p.cache, is_v, slot);
  if (is_v) d -= token_size;
  store_finite(out + d, load_unit(in + d), p.status + row);
}

template <class T, class Element>
void launch_kv_append(const KvAppendParams& p, Stream stream) {
  int64_t units = 2 * p.cache.num_kv_heads * p.cache.head_dim / kUnit;
  dim3 grid((unsigned)p.M, (unsigned)ceil_div(units, kThreads));
  SPECFAST_LAUNCH((kv_append_kernel<T, Element>), grid, kThreads, 0, stream, p);
}

template <class T>
void launch_into(const KvAppendParams& p, Stream stream) {
  if (p.cache.dtype == DType::bf16)
    launch_kv_append<T, Bf16>(p, stream);
  else
    launch_kv_append<T, float>(p, stream);
}

}  // namespace

void kv_append(const KvAppendParams& p, Stream stream) {
  if (p.dtype == DType::bf16)
    launch_into<Bf16>(p, stream);
  else
    launch_into<float>(p, stream);
}

}  // namespace specfast::cuda
