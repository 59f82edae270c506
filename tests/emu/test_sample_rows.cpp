#include "sampling.h"

namespace {

using namespace sampling;
using specfast::SampleRowsParams;

// Tokens, statuses, log-probability ids and bits. L < 0: no log-probabilities.
std::vector<int32_t> on_cpu(const Rows& rows, int64_t L) {
  std::vector<int32_t> tokens(rows.R()), status(rows.R()), ids(rows.R() * (1 + L));
  std::vector<float> logprobs(ids.size());
  SampleRowsParams p{};
  rows.set(p);
  p.tokens = tokens.data(), p.status = status.data();
  if (L >= 0) p.L = L, p.logprob_ids = ids.data(), p.logprobs = logprobs.data();
  specfast::cpu::sample_rows(p, specfast::serial_for);
  return joined({tokens, status, ids}, logprobs);
}

template <class T, class Change>
std::vector<int32_t> run_once(const DeviceRows<T>& in, int64_t L, Change change) {
  Device<int32_t> tokens(in.rows.R()), status(in.rows.R()), ids(in.rows.R() * (1 + L));
  Device<float> logprobs(ids.size());
  SampleRowsParams p{};
  in.set(p);
  change(p);
  p.tokens = tokens.data(), p.status = status.data();
  if (L >= 0) p.L = L, p.logprob_ids = ids.data(), p.logprobs = logprobs.data();
  Device<char> workspace((size_t)specfast::cuda::workspace_bytes(p));
  p.workspace = workspace.data();
  specfast::cuda::sample_rows(p, nullptr);
  return joined({tokens.host(), status.host(), ids.host()}, logprobs.host());
}
template <class T>
std::vector<int32_t> run_once(const DeviceRows<T>& in, int64_t L) {
  return run_once(in, L, [](SampleRowsParams&) {});
}

template <class T>
std::vector<int32_t> on_device(const Rows& rows, int64_t L) {
  DeviceRows<T> in(rows);
  return everywhere([&] { return run_once(in, L); });
}

void check(Rows rows, int64_t L = -1) {
  auto expected = on_cpu(rows, L), got = on_device<float>(rows, L);
  CHECK_BYTES(got, expected);
  rows.round();
  auto expected_of_bf16 = on_cpu(rows, L), got_of_bf16 = on_device<Bf16>(rows, L);
  CHECK_BYTES(got_of_bf16, expected_of_bf16);
}

TEST(sample_rows_gives_the_bytes_of_the_cpu) {
  for (int64_t V : {1, 3, 100}) {
    Rows rows(V, V + V % 4);
    for (int64_t n = 0; n < 96; n++) rows.add(some_logits(n / 2, V), some_settings(n, V));
    check(rows);
  }
}

TEST(sample_rows_cuts_the_vocabulary_anywhere) {
  for (int64_t V : {8191, 8192, 8193, 20000}) {
    Rows rows(V, V + 3);
    for (int64_t n = 0; n < 12; n++) rows.add(some_logits(n, V), some_settings(5 * n + 2, V));
    check(rows);
  }
}

TEST(sample_rows_finds_what_lies_at_the_ends_of_slices) {
  for (int64_t token : {0, 8191, 8192, 16383, 16384})
    for (float temperature : {0.0f, 0.5f}) {
      Rows rows(16385);
      for (int32_t k : {0, 3})
        for (float top_p : {1.0f, 0.5f}) {
          std::vector<float> x(16385, -3.0f);
          x[token] = 25.0f;
          rows.add(x, {temperature, k, top_p});
          x[(token + 8000) % 16385] = 25.0f;  // a tie in another slice
          rows.add(x, {temperature, k, top_p});
        }
      check(rows);
    }
}

// The k best lie in both slices, next to tokens that are as likely but for their ids, or nearly so.
TEST(sample_rows_keeps_k_of_all_slices) {
  Rows rows(8200);
  for (int32_t k : {1, 2, 4})
    for (float step : {0.0f, 0.01f})
      for (int64_t seed = 0; seed < 6; seed++) {
        std::vector<float> x(8200, -30.0f);
        for (int32_t i = 0; i < 2 * k; i++) x[i % 2 ? 8199 - i : 100 * i] = 10.0f - step * (float)i;
        rows.add(x, {1.0f, k, 1.0f, 0.0f, seed});
      }
  check(rows);
}

// A bin's tokens are listed if no more than 4096.
TEST(sample_rows_takes_as_many_equals_as_there_is_room_for) {
  Rows rows(8200);
  for (int64_t count : {4096, 4097})
    for (float top_p : {0.3f, 0.999f}) {
      std::vector<float> x(8200, -kInf);
      std::fill_n(&x[50], count, 1.0f);
      rows.add(x, {1.0f, 0, top_p});
    }
  check(rows);
}

TEST(sample_rows_takes_a_whole_vocabulary) {
  for (int64_t V : {49152, 128256}) {
    Rows rows(V);
    rows.add(logits(V, 1), {1.0f});
    rows.add(logits(V, 2), {0.6f, 50});
    rows.add(logits(V, 3), {1.0f, 0, 0.9f});
    rows.add(logits(V, 4), {2.0f, 2000, 0.99f, 0.001f});
    rows.add(logits(V, 5), {0.0f});
    check(rows);
  }
}

TEST(sample_rows_gives_logprobs) {
  for (int64_t V : {3, 100, 8193})
    for (int64_t L : {0, 5, 200}) {
      Rows rows(V);
      for (int64_t n = 0; n < (V < 1000 ? 24 : 6); n++)
        rows.add(some_logits(n, V), some_settings(3 * n, V));
      check(rows, L);
    }
}

TEST(sample_rows_takes_no_rows) { check(Rows(100)); }

#if !defined(__CUDACC__)
// Rows 6 GiB apart, of which memory holds only the logits.
TEST(sample_rows_reaches_past_32_bits) {
  Rows rows(100);
  for (int64_t n = 0; n < 3; n++) rows.add(logits(100, (unsigned)n), {0.0f + (float)n});
  DeviceRows<float> in(rows);
  int64_t stride = (int64_t)3 << 29;
  auto far = Device<float>::sparse((size_t)(2 * stride + 100));
  for (int64_t row = 0; row < 3; row++)
    std::copy_n(&rows.logits[row * 100], 100, far.data() + row * stride);
  auto got = run_once(
      in, -1, [&](SampleRowsParams& p) { p.logits = far.data(), p.logits_stride = stride; });
  CHECK_BYTES(got, on_cpu(rows, -1));
}

// What a later launch reads is not what the first ones did: logits outside [begin, end) and of no
// chosen token are overwritten by x once `kernel` has run. Each kernel has one loop over its slice.
std::vector<int32_t> overwritten_after(const char* kernel, float x, const Rows& rows, int64_t L,
                                       int64_t begin = 0, int64_t end = 0) {
  DeviceRows<float> in(rows);
  auto chosen = on_cpu(rows, L);
  emu::after_launch = [&](const char* name) {
    for (int64_t i = 0; i < rows.R() * rows.V && strstr(name, kernel); i++) {
      int64_t id = i % rows.V;
      bool kept = (id >= begin && id < end) || (L >= 0 && id == chosen[(size_t)(i / rows.V)]);
      if (!kept) in.logits.data()[i] = x;
    }
  };
  auto got = run_once(in, L);
  emu::after_launch = nullptr;
  return got;
}

TEST(sample_rows_reads_logits_once) {
  Rows rows(20000);
  for (float temperature : {0.0f, 1.0f})
    for (int32_t k : {0, 5, 128}) rows.add(logits(20000, (unsigned)k), {temperature, k});
  CHECK_BYTES(overwritten_after("scan_slices", kInf, rows, -1), on_cpu(rows, -1));
}

TEST(sample_rows_reads_logits_twice_for_masses) {
  Rows rows(20000);
  rows.add(logits(20000, 1), {1.0f, 0, 1.0f, 0.05f});
  rows.add(logits(20000, 2), {0.0f});
  rows.add(logits(20000, 3), {1.0f});
  CHECK_BYTES(overwritten_after("weigh_slices", kInf, rows, 3), on_cpu(rows, 3));
}

// Shares 0.665, 0.245, 0.090: top-p ends at the second.
TEST(sample_rows_reads_slices_of_the_boundary_again) {
  Rows rows(20000);
  for (int64_t seed = 0; seed < 20; seed++) {
    std::vector<float> x(20000, -30.0f);
    x[19999] = 10.0f, x[9000] = 9.0f, x[5] = 8.0f;
    rows.add(x, {1.0f, 0, 0.9f, 0.0f, seed});
  }
  CHECK_BYTES(overwritten_after("weigh_slices", 9.0f, rows, -1, 8192, 16384), on_cpu(rows, -1));
}
#endif

}  // namespace
