// All inline PTX, each with its host twin (tests/emu/tensor_core.h). sm_80 and later.
#pragma once
#include "core/bf16.h"
#include "cuda/launch.cuh"

namespace specfast::cuda {

#if defined(__CUDACC__)
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
#endif

// Two floats rounded to bf16, to nearest even; low in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
#if defined(__CUDACC__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return narrow<Bf16>(low).bits | (uint32_t)narrow<Bf16>(high).bits << 16;
#endif
}

// c += a b, bf16 in, fp32 out: a is 16x16, b 16x8. Lane l holds, with g = l / 4 and t = 2 (l % 4):
// a: rows g and g + 8, columns t, t + 1; then the same rows, columns t + 8, t + 9. b: rows t, t + 1
// of column g; then rows t + 8, t + 9. c: row g, columns t, t + 1; then row g + 8.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emu::mma_m16n8k16(c, a, b);
#endif
}

// Four 8x8 matrices of 16-bit elements from shared memory: lane 8 i + j points at row j of matrix i
// (16 bytes, aligned). Lane l gets of each matrix two elements of row l / 4, from 2 (l % 4) on.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#else
  emu::ldmatrix<4>(r, row, false);
#endif
}

// The same of each matrix's transpose: two elements of column l / 4.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#else
  emu::ldmatrix<4>(r, row, true);
#endif
}

// Two matrices: lanes 0-15 point at their rows.
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#else
  emu::ldmatrix<2>(r, row, false);
#endif
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#else
  emu::ldmatrix<2>(r, row, true);
#endif
}

// One matrix: lanes 0-7 point at its rows.
__device__ __forceinline__ void ldmatrix_x1(uint32_t (&r)[1], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(shared_address(row))
               : "memory");
#else
  emu::ldmatrix<1>(r, row, false);
#endif
}

__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t (&r)[1], const void* row) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(shared_address(row))
               : "memory");
#else
  emu::ldmatrix<1>(r, row, true);
#endif
}

// Starts a copy of 16 bytes, both sides aligned, past L1. It has landed for this thread after a
// cp_async_wait, for others after a barrier behind that.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(global)
               : "memory");
#else
  emu::cp_async_16(shared, global, 16);
#endif
}

// Copies the first `bytes` (0 to 16) and fills the rest with zeros; with 0, global is not read.
__device__ __forceinline__ void cp_async_16_fill(void* shared, const void* global, int bytes) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes)
               : "memory");
#else
  emu::cp_async_16(shared, global, bytes);
#endif
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emu::cp_async_commit();
#endif
}

// Waits for all of this thread's groups but the newest `kNewest`.
template <int kNewest>
__device__ __forceinline__ void cp_async_wait() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
#else
  emu::cp_async_wait(kNewest);
#endif
}

}  // namespace specfast::cuda
