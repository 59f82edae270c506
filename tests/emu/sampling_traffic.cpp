// How often sample_rows reads each logit, and how little it writes.
#include "sampling.h"
#include "traffic.h"

namespace {

using namespace sampling;
using specfast::SampleRowsParams;

constexpr int64_t kVocab = 20000, kStride = kVocab + 3, kSlice = 8192;

struct Traffic {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> reads;                   // of each logit, [R, stride]
  uint64_t of_logits, of_outputs, of_workspace;  // bytes written
};

// L < 0: no log-probabilities.
template <class T>
Traffic traffic_of(const Rows& rows, int64_t L) {
  DeviceRows<T> in(rows);
  Device<int32_t> tokens(rows.R()), status(rows.R()), ids(rows.R() * (1 + L));
  Device<float> logprobs(ids.size());
  SampleRowsParams p{};
  in.set(p);
  p.tokens = tokens.data(), p.status = status.data();
  if (L >= 0) p.L = L, p.logprob_ids = ids.data(), p.logprobs = logprobs.data();
  Traffic t{};
  Device<char> workspace((size_t)specfast::cuda::workspace_bytes(p));
  p.workspace = workspace.data();
  emu::Watch logits(in.logits.data(), in.logits.size()), work(workspace.data(), workspace.size());
  emu::Watch out(tokens.data(), tokens.size()), more(status.data(), status.size());
  emu::Watch listed(ids.data(), ids.size()), probable(logprobs.data(), logprobs.size());
  specfast::cuda::sample_rows(p, nullptr);
  t.tokens = tokens.host();
  for (size_t i = 0; i < in.logits.size(); i++) t.reads.push_back(logits.reads(i));
  t.of_logits = logits.bytes_written(), t.of_workspace = work.bytes_written();
  t.of_outputs = out.bytes_written() + more.bytes_written() + listed.bytes_written() +
                 probable.bytes_written();
  return t;
}

// By slice, how often each of its logits is read; a chosen token's own log-probability apart.
std::vector<int32_t> reads_of_slices(const Traffic& t, int64_t row, bool with_logprobs) {
  std::vector<int32_t> reads;
  for (int64_t begin = 0; begin < kVocab; begin += kSlice) {
    int64_t end = std::min(begin + kSlice, kVocab);
    std::vector<uint32_t> of(&t.reads[row * kStride + begin], &t.reads[row * kStride + end]);
    int64_t chosen = t.tokens[row] - begin;
    if (with_logprobs && chosen >= 0 && chosen < end - begin) of[chosen]--;
    CHECK_EQ(*std::min_element(of.begin(), of.end()), *std::max_element(of.begin(), of.end()));
    reads.push_back((int32_t)of[0]);
  }
  return reads;
}

// Shares 0.665, 0.245, 0.090, and next to nothing for all others.
std::vector<float> three_tokens() {
  std::vector<float> x(kVocab, -30.0f);
  x[19999] = 10.0f, x[9000] = 9.0f, x[5] = 8.0f;
  return x;
}

struct Expected {
  Settings settings;
  std::vector<int32_t> reads, with_logprobs;  // by slice
};

// Of three_tokens(), where top-p 0.9 ends at token 9000, in the second slice.
const std::vector<int32_t> kOnce = {1, 1, 1}, kTwice = {2, 2, 2}, kBoundary = {2, 3, 2};
const std::vector<Expected> kExpected = {
    {{0.0f}, kOnce, kTwice},
    {{0.0f, 5, 0.9f, 0.1f}, kOnce, kTwice},
    {{1.0f}, kOnce, kTwice},
    {{1.0f, 1}, kOnce, kTwice},
    {{1.0f, 128}, kOnce, kTwice},
    {{1.0f, 0, 1.0f, 0.05f}, kTwice, kTwice},
    {{1.0f, 2, 1.0f, 0.05f}, kTwice, kTwice},
    {{1.0f, 0, 0.9f}, kBoundary, kBoundary},
    {{1.0f, 0, 0.9f, 0.05f}, kBoundary, kBoundary},
    {{1.0f, 2, 0.9f, 0.05f}, kBoundary, kBoundary},
    {{1.0f, 3, 0.9f}, kBoundary, kBoundary},
};

template <class T>
void check_reads(int64_t L) {
  Rows rows(kVocab, kStride);
  for (const Expected& e : kExpected) rows.add(three_tokens(), e.settings);
  Traffic t = traffic_of<T>(rows, L);
  for (int64_t row = 0; row < rows.R(); row++) {
    const Expected& e = kExpected[(size_t)row];
    CHECK_BYTES(reads_of_slices(t, row, L >= 0), L < 0 ? e.reads : e.with_logprobs);
    for (int64_t i = kVocab; i < kStride; i++) CHECK_EQ(t.reads[row * kStride + i], 0u);
  }
}

TEST(sample_rows_reads_logits_once_or_twice_and_the_boundary_slice_again) {
  check_reads<float>(-1);
  check_reads<Bf16>(-1);
}

TEST(sample_rows_reads_logits_twice_for_logprobs) {
  check_reads<float>(3);
  check_reads<Bf16>(3);
}

TEST(sample_rows_reads_no_slice_more_than_once_a_boundary) {
  Rows rows(kVocab, kStride);
  std::vector<int32_t> bounds;
  for (float temperature : {0.5f, 1.0f, 2.0f})
    for (int32_t k : {0, 128, 129, 3000})
      for (float top_p : {1.0f, 0.7f, 0.999f})
        for (float min_p : {0.0f, 0.01f}) {
          rows.add(logits(kVocab, (unsigned)rows.R()), {temperature, k, top_p, min_p});
          bool once = k <= 128 && top_p == 1.0f && min_p == 0.0f;
          bounds.push_back(once ? 1 : 2 + (k > 0) + (top_p < 1.0f));
        }
  Traffic t = traffic_of<float>(rows, -1);
  for (int64_t row = 0; row < rows.R(); row++)
    for (int32_t reads : reads_of_slices(t, row, false)) CHECK(reads <= bounds[(size_t)row]);
}

TEST(sample_rows_writes_nothing_of_the_size_of_its_logits) {
  for (int64_t L : {-1, 5}) {
    Rows rows(kVocab, kStride);
    for (const Expected& e : kExpected) rows.add(logits(kVocab, 1), e.settings);
    Traffic t = traffic_of<Bf16>(rows, L);
    CHECK_EQ(t.of_logits, 0u);
    CHECK_EQ(t.of_outputs, (uint64_t)rows.R() * (2 + 2 * (1 + L)) * 4);
    CHECK(t.of_workspace < (uint64_t)(rows.R() * kVocab));  // bytes, atomics included
  }
}

TEST(sample_rows_asks_for_little_workspace) {
  for (int64_t vocab : {32000, 128256, 262144}) {
    SampleRowsParams p{};
    p.R = 64, p.V = vocab;
    CHECK(specfast::cuda::workspace_bytes(p) < p.R * (24000 + vocab / 4));
  }
}

}  // namespace
