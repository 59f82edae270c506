#include "cuda/kv_store.cuh"
#include "cuda/rms.cuh"

namespace specfast::cuda {
namespace {

constexpr int kHeads = 8;          // a block
constexpr int kLanes = kRmsLanes;  // a head
constexpr int kThreads = kHeads * kLanes;

// One head in shared memory, and one of the lanes that work on it.
struct Head {
  Unit* units;
  float* x;  // the same floats
  int head_dim, lane;
  unsigned mask;  // of its lanes

  __device__ void sync() const { __syncwarp(mask); }
};

// body(unit, d) for each of the lane's units, which begin at element d.
template <class Body>
__device__ void each_unit(const Head& head, Body body) {
  for (int i = head.lane; i < head.head_dim / kUnit; i += kLanes) body(head.units[i], i * kUnit);
}

// x / rms(x) * weight, as the op rms_norm rounds it.
__device__ void norm_head(const Head& head, const float* weight, float eps) {
  float squares = 0.0f;
  for (int d = head.lane; d < head.head_dim; d += kLanes)
    squares = fmaf(head.x[d], head.x[d], squares);
  float inverse = inverse_rms(squares, head.head_dim, eps, head.mask);
  for (int d = head.lane; d < head.head_dim; d += kLanes)
    head.x[d] = head.x[d] * inverse * weight[d];
  head.sync();
}

// Pairs (d, d + half) turn by the angle of dimension d; cosines lie at angles, sines after them.
__device__ void rotate_head(const Head& head, const float* angles, int half) {
  for (int d = head.lane; d < half; d += kLanes) {
    float a = head.x[d], b = head.x[half + d], c = angles[d], s = angles[half + d];
    head.x[d] = a * c - b * s;
    head.x[half + d] = b * c + a * s;
  }
  head.sync();
}

// Nobody has looked at a position in device memory: one beyond the table is padding.
__device__ bool is_padding(const RopeKvAppendParams& p, int64_t position) {
  return position < 0 || (p.rotary_dim > 0 && position >= p.num_positions);
}

// The heads of a row are those of q, then of K, then of V.
template <class T, class Element>
__global__ void __launch_bounds__(kThreads) rope_kv_append_kernel(RopeKvAppendParams p) {
  // Padded, so that a warp's two heads lie in other banks.
  SPECFAST_SHARED(Unit[kHeads][(kMaxHeadDim + kLanes) / kUnit], heads);
  int64_t row = blockIdx.x, position = p.positions[row], slot = p.slots[row];
  int64_t head_dim = p.cache.head_dim, kv_heads = p.cache.num_kv_heads;
  int64_t h = (int64_t)blockIdx.y * kHeads + threadIdx.x / kLanes, kv_head = h - p.H;
  bool is_q = kv_head < 0, is_v = kv_head >= kv_heads, padding = is_padding(p, position);
  if (kv_head >= 2 * kv_heads) return;
  Unit* units = heads[threadIdx.x / kLanes];
  Head head{units, units->v, (int)head_dim, (int)threadIdx.x % kLanes,
            0xffffu << threadIdx.x % 32 / kLanes * kLanes};

  T* q = reinterpret_cast<T*>(p.q_out) + (row * p.H + h) * head_dim;
  if (padding && is_q) each_unit(head, [&](Unit&, int d) { store_unit(q + d, Unit{}); });
  if (padding || (!is_q && !is_slot(p.cache, slot))) return;

  const T* in = reinterpret_cast<const T*>(p.qkv) + row * p.qkv_stride + h * head_dim;
  each_unit(head, [&](Unit& unit, int d) { unit = load_unit(in + d); });
  head.sync();
  const float* weight = is_q ? p.q_norm : p.k_norm;
  if (!is_v && weight) norm_head(head, weight, p.eps);
  if (!is_v) rotate_head(head, p.cos_sin + position * p.rotary_dim, (int)p.rotary_dim / 2);

  if (is_q) return each_unit(head, [&](Unit& unit, int d) { store_unit(q + d, unit); });
  Element* out = slot_data<Element>(p.cache, is_v, slot) + (kv_head - is_v * kv_heads) * head_dim;
  each_unit(head, [&](Unit& unit, int d) { store_finite(out + d, unit, p.status + row); });
}

template <class T, class Element>
void launch_rope_kv_append(const RopeKvAppendParams& p, Stream stream) {
  dim3 grid((unsigned)p.M, (unsigned)ceil_div(p.H + 2 * p.cache.num_kv_heads, kHeads));
  SPECFAST_LAUNCH((rope_kv_append_kernel<T, Element>), grid, kThreads, 0, stream, p);
}

template <class T>
void launch_into(const RopeKvAppendParams& p, Stream stream) {
  if (p.cache.dtype == DType::bf16)
    launch_rope_kv_append<T, Bf16>(p, stream);
  else
    launch_rope_kv_append<T, float>(p, stream);
}

}  // namespace

void rope_kv_append(const RopeKvAppendParams& p, Stream stream) {
  if (p.dtype == DType::bf16)
    launch_into<Bf16>(p, stream);
  else
    launch_into<float>(p, stream);
}

}  // namespace specfast::cuda
