// The launchers. cpu::op runs on the SIMD tier chosen at start; every tier gives the same bits.
// cuda::op enqueues on a stream, and reads its tensors as the params' dtypes say.
#pragma once
#include <string>

#include "core/parallel.h"
#include "params.h"

#define SPECFAST_CPU_OPS(X)                  \
  X(linear, LinearParams)                    \
  X(rms_norm, RmsNormParams)                 \
  X(silu_mul, SiluMulParams)                 \
  X(rope_kv_append, RopeKvAppendParams)      \
  X(kv_append, KvAppendParams)               \
  X(tree_attention, TreeAttentionParams)     \
  X(sample_rows, SampleRowsParams)           \
  X(rank_candidates, RankCandidatesParams)   \
  X(draw_candidates, DrawCandidatesParams)   \
  X(rejection_sample, RejectionSampleParams) \
  X(typical_sample, TypicalSampleParams)     \
  X(stream_read, StreamReadParams)

namespace specfast::cpu {

enum class Tier { scalar = 0, avx2 = 1, avx512 = 2 };

Tier best_tier();  // the widest tier that this build has and this CPU runs
Tier current_tier();
bool set_tier(Tier tier);  // false: not available here
const char* tier_name(Tier tier);

#define SPECFAST_DECLARE(op, Params) void op(const Params& p, ParallelFor parallel_for);
namespace scalar {
SPECFAST_CPU_OPS(SPECFAST_DECLARE)
}
namespace avx2 {
SPECFAST_CPU_OPS(SPECFAST_DECLARE)
}
namespace avx512 {
SPECFAST_CPU_OPS(SPECFAST_DECLARE)
}
SPECFAST_CPU_OPS(SPECFAST_DECLARE)
#undef SPECFAST_DECLARE

// Moves and walks: no arithmetic, so no tiers.
void kv_compact(const KvCompactParams& p, ParallelFor parallel_for);
void accept_path(const AcceptPathParams& p, ParallelFor parallel_for);

// Asks the kernel for huge pages under [data, data + bytes); false: not available.
bool advise_huge_pages(void* data, int64_t bytes);

}  // namespace specfast::cpu

namespace specfast::cuda {

using Stream = void*;  // a cudaStream_t

const char* built_images();  // "sm_80 compute_80 sm_90": devices' code, and PTX
int toolkit_version();       // of the CUDA that built them; 13000 is 13.0
int driver_version();        // the newest CUDA that this machine's driver runs; 0: no driver

// Why no built image runs on a device of that compute capability; empty: one does.
std::string misfit(int major, int minor);

// Throws what a CUDA call's error (a cudaError_t) means for that kernel.
[[noreturn]] void launch_failed(const char* kernel, int error);

void rms_norm(const RmsNormParams& p, Stream stream);
void silu_mul(const SiluMulParams& p, Stream stream);
void tree_attention(const TreeAttentionParams& p, Stream stream);

// The floats of workspace with which tree_attention is fastest, from sizes alone. Fewer will do,
// down to `least`: splits then run one after another.
struct WorkspaceFloats {
  int64_t best, least;
};
WorkspaceFloats tree_attention_workspace(const TreeAttentionParams& p);
void rope_kv_append(const RopeKvAppendParams& p, Stream stream);
void kv_append(const KvAppendParams& p, Stream stream);
void kv_compact(const KvCompactParams& p, Stream stream);
void accept_path(const AcceptPathParams& p, Stream stream);
void sample_rows(const SampleRowsParams& p, Stream stream);
void rank_candidates(const RankCandidatesParams& p, Stream stream);
void draw_candidates(const DrawCandidatesParams& p, Stream stream);
void rejection_sample(const RejectionSampleParams& p, Stream stream);
void typical_sample(const TypicalSampleParams& p, Stream stream);

// What p.workspace must have room for; by sizes alone.
int64_t workspace_bytes(const SampleRowsParams& p);
int64_t workspace_bytes(const RankCandidatesParams& p);
int64_t workspace_bytes(const DrawCandidatesParams& p);
int64_t workspace_bytes(const RejectionSampleParams& p);
int64_t workspace_bytes(const TypicalSampleParams& p);
inline int64_t workspace_bytes(const TreeAttentionParams& p) {
  return 4 * tree_attention_workspace(p).best;
}

}  // namespace specfast::cuda
